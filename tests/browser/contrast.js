// Text nodes whose colour is too near to what lies behind them, by the contrast of WCAG 2: 4.5, and 3 for
// large text. What lies behind is found by asking the ancestors for the first colour that is not clear.
() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const rgb = (colour, under) => {
    canvas.fillStyle = under; canvas.fillRect(0, 0, 1, 1);
    canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (element) => {
    const own = getComputedStyle(element).backgroundColor;
    const under = element.parentElement ? behind(element.parentElement) : [255, 255, 255];
    return rgb(own, css(under));
  };
  const low = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let texts = 0;
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
    texts += 1;
    const style = getComputedStyle(element);
    const back = behind(element.closest("svg")?.parentElement ?? element);
    const colour = element instanceof SVGElement ? style.fill : style.color;
    const [a, b] = [light(rgb(colour, css(back))), light(back)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) low.push(`${walker.currentNode.data.slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return {texts, low};
}
