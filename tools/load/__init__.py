"""The traffic driver: sends real requests, counts every answer, loses none from sight."""
