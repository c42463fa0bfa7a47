"""The Common Expression Language: lexer, parser, checker, compiler, cost; values, never devices, never I/O."""
