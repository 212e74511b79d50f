// The canvas of the map: draws points, zooms, moves, and finds the point under a pointer or in the direction of a key.

const REACH = 14; // pixels from which a point is found
const PADDING = 28;
const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** Colours that differ for neighbouring ids: hues by the golden angle, three depths. */
export function colourOf(id, dark) {
  if (id < 0) return dark ? "#6b7078" : "#a9adb3";
  const hue = (id * 137.508) % 360;
  const light = dark ? [68, 60, 76][id % 3] : [46, 38, 54][id % 3];
  return `hsl(${hue.toFixed(1)} 58% ${light}%)`;
}

/** {setPoints, highlight, colour}; `hover(point | null, x, y)` and `open(point)` are told what a person does. */
export function createPlane(canvas, { hover, open }) {
  const context = canvas.getContext("2d");
  let points = [];
  let view = { scale: 1, x: 0, y: 0 };
  let bounds = null;
  let chosen = null; // the point under the pointer or the keys
  let lit = null; // the category that stands out
  let drag = null;
  const touches = new Map();

  const size = () => ({ width: canvas.clientWidth, height: canvas.clientHeight });
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => {
    const { colorScheme } = getComputedStyle(canvas);
    return colorScheme === "dark" || (colorScheme !== "light" && system.matches);
  };

  /** Where a point is on the screen; one scale for both axes, as distances matter. */
  function place({ x, y }) {
    const { width, height } = size();
    const unit = Math.min((width - 2 * PADDING) / bounds.width, (height - 2 * PADDING) / bounds.height) * view.scale;
    return [width / 2 + view.x + (x - bounds.x) * unit, height / 2 + view.y - (y - bounds.y) * unit];
  }

  function draw() {
    const { width, height } = size();
    const ratio = devicePixelRatio || 1;
    if (!width || !bounds) return;
    if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
    if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const night = dark();
    const radius = radiusOf(points.length) * Math.min(Math.sqrt(view.scale), 2.2);
    const standing = lit ?? chosen?.category ?? null;
    for (const point of points) {
      const [x, y] = place(point);
      if (x < -9 || y < -9 || x > width + 9 || y > height + 9) continue;
      context.globalAlpha = standing === null || point.category === standing ? 0.85 : 0.16;
      context.fillStyle = colourOf(point.category, night);
      context.beginPath();
      context.arc(x, y, radius, 0, 7);
      context.fill();
    }
    context.globalAlpha = 1;
    if (!chosen) return;
    context.strokeStyle = night ? "#fff" : "#111";
    context.lineWidth = 2;
    context.beginPath();
    context.arc(...place(chosen), radius + 4, 0, 7);
    context.stroke();
  }

  let frame = 0;
  const redraw = () => {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(draw);
  };

  function nearest(x, y) {
    let best = null;
    let least = REACH;
    for (const point of points) {
      const [px, py] = place(point);
      const distance = Math.hypot(px - x, py - y);
      if (distance < least) [best, least] = [point, distance];
    }
    return best;
  }

  function choose(point) {
    if (point === chosen) return;
    chosen = point;
    canvas.classList.toggle("on-point", point !== null);
    if (point) hover(point, ...place(point));
    else hover(null);
    redraw();
  }

  function zoom(factor, x, y) {
    const { width, height } = size();
    const scale = Math.min(Math.max(view.scale * factor, 1), 60);
    const ratio = scale / view.scale;
    const shift = (old, at, middle) => at - middle - (at - middle - old) * ratio;
    const moved = { scale, x: shift(view.x, x, width / 2), y: shift(view.y, y, height / 2) };
    view = scale === 1 ? { scale, x: 0, y: 0 } : moved;
    redraw();
  }

  /** The next point in a direction: near, and rather straight ahead. */
  function step([dx, dy]) {
    const { width, height } = size();
    const [x, y] = chosen ? place(chosen) : [width / 2, height / 2];
    let best = null;
    let least = Infinity;
    for (const point of points) {
      const [px, py] = place(point);
      const ahead = (px - x) * dx + (py - y) * dy;
      const aside = Math.abs((px - x) * dy) + Math.abs((py - y) * dx);
      if (point !== chosen && ahead > 0.5 && ahead + 2 * aside < least) [best, least] = [point, ahead + 2 * aside];
    }
    if (best) choose(best);
  }

  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };

  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = at(event);
    if (touches.has(event.pointerId)) touches.set(event.pointerId, [x, y]);
    if (touches.size === 2) pinch();
    else if (drag) {
      view = { ...view, x: drag.view.x + x - drag.x, y: drag.view.y + y - drag.y };
      drag.moved ||= Math.hypot(x - drag.x, y - drag.y) > 4;
      if (drag.moved) choose(null);
      redraw();
    } else choose(nearest(x, y));
  });
  canvas.addEventListener("pointerdown", (event) => {
    const [x, y] = at(event);
    canvas.setPointerCapture(event.pointerId);
    touches.set(event.pointerId, [x, y]);
    drag = { x, y, view: { ...view }, moved: false };
  });
  const release = (event) => {
    touches.delete(event.pointerId);
    const clicked = drag && !drag.moved && event.type === "pointerup";
    drag = null;
    spread = 0;
    const point = clicked ? nearest(...at(event)) : null;
    if (point && (event.pointerType === "mouse" || point === chosen)) open(point); // a first touch only shows it
    else if (clicked) choose(point);
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => !drag && choose(null));
  canvas.addEventListener("dblclick", () => zoom(0, 0, 0));
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * 0.0016), ...at(event));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const { width, height } = size();
    if (event.key in DIRECTIONS) step(DIRECTIONS[event.key]);
    else if (event.key === "Enter" && chosen) open(chosen);
    else if (event.key === "+" || event.key === "-") zoom(event.key === "+" ? 1.4 : 1 / 1.4, width / 2, height / 2);
    else return;
    event.preventDefault();
  });
  canvas.addEventListener("blur", () => choose(null));

  let spread = 0;
  function pinch() {
    const [a, b] = [...touches.values()];
    const distance = Math.hypot(a[0] - b[0], a[1] - b[1]);
    if (spread) zoom(distance / spread, (a[0] + b[0]) / 2, (a[1] + b[1]) / 2);
    spread = distance;
    drag.moved = true;
  }

  new ResizeObserver(redraw).observe(canvas);
  document.addEventListener("themechange", redraw);
  system.addEventListener("change", redraw);

  return {
    colour: (id) => colourOf(id, dark()),
    highlight(id) {
      lit = id;
      redraw();
    },
    setPoints(fresh) {
      points = fresh;
      choose(null);
      view = { scale: 1, x: 0, y: 0 };
      bounds = boundsOf(fresh);
      redraw();
    },
  };
}

/** Fewer points may be larger. */
const radiusOf = (number) => Math.min(Math.max(60 / Math.sqrt(number), 3), 6);

function boundsOf(points) {
  const [xs, ys] = [points.map(({ x }) => x), points.map(({ y }) => y)];
  const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  return { x: (left + right) / 2, y: (low + high) / 2, width: right - left || 1, height: high - low || 1 };
}
