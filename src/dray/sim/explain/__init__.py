"""Why a Pod waits, or why it got what it has: the scheduler's own answers, node by node, and what would change them."""
