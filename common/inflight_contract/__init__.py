"""Server side of the contract between pods and control plane: errors, signed calls, tenants, limits, versions."""
