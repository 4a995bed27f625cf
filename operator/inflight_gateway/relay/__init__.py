"""The process between Envoy's outer and inner listener: an answer whose replica fails goes on at another one."""
