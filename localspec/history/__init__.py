"""All conversations on disk, in one SQLite file, written as they stream."""
