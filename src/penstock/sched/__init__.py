"""The scheduler: which job starts when, and why the others wait. Pure: facts and time in, changes out."""
