"""What continues token sequences, one file each. To add one: a class with the two methods of `Engine`, its contract test."""
