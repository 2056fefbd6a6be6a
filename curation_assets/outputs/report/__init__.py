"""Pictures and the HTML report: what people would rather look at than read."""
