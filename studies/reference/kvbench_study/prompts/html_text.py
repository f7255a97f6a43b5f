"""HTML to plain text, with the standard library only, so that the result is the same on every
machine.
"""

import re
from html.parser import HTMLParser

# Dropped with their content.
SKIPPED = {"head", "script", "style", "svg", "nav", "template"}
# Start and end a paragraph.
PARAGRAPHS = {"address", "article", "blockquote", "dl", "figure", "footer", "form", "h1", "h2", "h3", "h4",
              "h5", "h6", "header", "main", "ol", "p", "pre", "section", "table", "ul"}
# Start a line.
LINES = {"br", "caption", "dd", "div", "dt", "hr", "li", "tr"}


class _Text(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.out, self.skipped, self.pre, self.cells = [], [], 0, 0

    def handle_starttag(self, tag, attrs):
        if tag == "body":  # the end tag of head is optional
            self.skipped.clear()
        if self.skipped or tag in SKIPPED:
            # Inside a dropped element only its end tag counts.
            if tag in SKIPPED:
                self.skipped.append(tag)
            return
        if tag in PARAGRAPHS:
            self.out.append("\n\n")
        elif tag in LINES:
            self.out.append("\n")
        if tag == "tr":
            self.cells = 0
        elif tag in ("td", "th"):
            self.out.append(" | " if self.cells else "")
            self.cells += 1
        elif tag == "li":
            self.out.append("- ")
        elif tag == "pre":
            self.pre += 1

    def handle_startendtag(self, tag, attrs):
        if tag not in SKIPPED:  # <script/> is empty
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag):
        if self.skipped:
            if tag == self.skipped[-1]:
                self.skipped.pop()
            return
        if tag == "pre":
            self.pre = max(0, self.pre - 1)
        if tag in PARAGRAPHS:
            self.out.append("\n\n")

    def handle_data(self, data):
        if self.skipped:
            return
        # Keep lines of preformatted text; mark their spaces.
        self.out.append(data.replace(" ", "\0").replace("\t", "\0" * 4) if self.pre
                        else re.sub(r"[ \t\r\n\f]+", " ", data))


def html_text(source):
    """Returns the text of a page: paragraphs separated by an empty line, a table row per line with
    cells joined by ` | `, preformatted text unchanged. No links, pictures, scripts or
    navigation.
    """
    parser = _Text()
    parser.feed(source.replace("\0", "").replace("\r\n", "\n"))
    parser.close()
    text = "".join(parser.out).replace("\u00a0", " ")
    text = re.sub(r" *\n *", "\n", re.sub(r" {2,}", " ", text))
    text = re.sub(r"\n{3,}", "\n\n", text).replace("\0", " ")
    return "\n".join(line.rstrip() for line in text.strip("\n").split("\n")) + "\n"
