"""Colours of every plot."""

INK, MUTED, GRID = "#1f2933", "#7b8794", "#e4e7eb"
BLUE, ORANGE, GREEN, RED, PURPLE, TEAL = "#2f6fde", "#e8833a", "#3a9d5d", "#d64545", "#8a5cd6", "#2a9d9d"
STATE_COLOURS = {"kept": GREEN, "dropped": ORANGE, "failed": RED}
