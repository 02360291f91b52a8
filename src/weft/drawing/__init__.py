"""Charts and tables as SVG and HTML: axes, marks, panels, numbers for readers. It knows nothing of studies."""
