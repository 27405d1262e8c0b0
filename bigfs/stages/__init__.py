"""The engine: stages, where they are kept, and how what they stored opens again."""
