"""The families, one file each: data only. ``docs/families.md`` says how to add one."""
