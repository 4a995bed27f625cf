"""Models in object stores and on HTTP servers: their small files on disk, their weights straight into memory."""
