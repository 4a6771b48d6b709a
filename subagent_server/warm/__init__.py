"""The zygote of this package: it loads everything and rehearses runs, so that none of its forks has to."""
