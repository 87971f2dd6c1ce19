"""The controller turns a command into records or a refusal. Its functions are pure; the time is an argument."""
