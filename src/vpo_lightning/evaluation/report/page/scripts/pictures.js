// A task's picture: [tag, attributes, children] with texts as children, built element by element.
// The lists repeat those of vpo_lightning.picture, so that the page trusts no data.

const SVG_TAGS = new Set(
  "svg g title desc rect circle ellipse line polyline polygon path text".split(" "),
);
const HTML_TAGS = new Set(
  "div p span strong em mark small code pre ol ul li table caption thead tbody tr th td".split(" "),
);
const PICTURE_ATTRIBUTES = new Set(
  (
    "class role aria-label aria-hidden scope colspan rowspan viewBox width height x y x1 x2 y1 y2 " +
    "cx cy r rx ry d points transform fill stroke stroke-width stroke-dasharray stroke-linejoin " +
    "stroke-linecap opacity text-anchor font-size font-weight"
  ).split(" "),
);

/** The element of a picture, or null for one that is not allowed. */
function picture([tag, attributes, children]) {
  const isSvg = SVG_TAGS.has(tag);
  if (!isSvg && !HTML_TAGS.has(tag)) return null;
  const space = isSvg ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml";
  const node = document.createElementNS(space, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (PICTURE_ATTRIBUTES.has(name)) node.setAttribute(name, value);
  }
  for (const child of children) {
    const inner = typeof child === "string" ? child : picture(child);
    if (inner !== null) node.append(inner);
  }
  return node;
}
