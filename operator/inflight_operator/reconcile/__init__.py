"""One round for one service: snapshot -> decide -> execute -> report.

`snapshot` is all that a round looks at, as one value. `decide` is pure: it makes a plan of it. `execute` does what the
plan says, and `report` tells what came of it. `rounds` puts the four in their order.
"""
