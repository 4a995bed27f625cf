"""The hold queue: bounds, order and fairness of requests that no replica can start soon. No I/O, no clock."""
