"""What the cluster and the engines show: pods, scrapes, and sliding windows over them."""
