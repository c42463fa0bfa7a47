"""The claim book kept in step with the disk and with drivers, for both kinds of claims."""
