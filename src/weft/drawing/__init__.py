"""Charts and tables as SVG and HTML: axes, marks, panels, numbers as text. It does not depend on studies."""
