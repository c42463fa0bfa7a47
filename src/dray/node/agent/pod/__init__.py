"""One Pod's life: what happened and what to do next. All thinking."""
