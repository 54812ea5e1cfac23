"""What no schedule can beat: lower bounds on time, and the least peak."""
