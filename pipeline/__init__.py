"""The corridor between the rooms: configuration, the plan, workers, progress."""
