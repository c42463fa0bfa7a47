"""The revisioned key-value store: one interface; memory, SQLite or etcd; bytes, never objects."""
