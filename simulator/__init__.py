"""From a plan to a program, and from a program to a timeline of time, power and energy."""
