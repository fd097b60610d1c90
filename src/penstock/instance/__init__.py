"""The running scheduler: receive inputs, decide, commit, act. One loop owns the state."""
