"""The command `inflight-simulate`."""
