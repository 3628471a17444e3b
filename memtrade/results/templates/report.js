"use strict";
// Draws the plots and answers the budget question out of the page's own data; loads nothing.
const data = JSON.parse(document.getElementById("data").textContent);
const number = (value, digits) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const seconds = (value) => number(value, value >= 1 ? 2 : 3);

function theme() {
  const style = getComputedStyle(document.documentElement);
  return (name) => style.getPropertyValue(`--${name}`).trim();
}

function colourOf(mark) {
  return mark.colour === "ink" ? theme()("ink") : mark.colour;
}

function layout(xTitle, yTitle, more) {
  const css = theme();
  const axis = { gridcolor: css("line"), linecolor: css("quiet"), zeroline: false, automargin: true };
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12, color: css("ink") },
    height: 340,
    margin: { l: 10, r: 10, t: 66, b: 10 },
    hoverlabel: { bgcolor: css("card"), bordercolor: css("line"), font: { color: css("ink") } },
    legend: { orientation: "h", x: 0, y: 1.03, yanchor: "bottom" },
    xaxis: { ...axis, title: { text: xTitle }, ...more.xaxis },
    yaxis: { ...axis, title: { text: yTitle }, rangemode: "tozero", separatethousands: true, ...more.yaxis },
    shapes: more.shapes || [],
  };
}

const config = { displaylogo: false, displayModeBar: false };

// A panel of a figure: its title, and a place to draw in. All panels are laid out before the first
// is drawn, because a plot takes the width that it finds; it is drawn again when the colours change.
const drawings = [];
function panel(figure, title, draw) {
  const frame = document.createElement("div");
  frame.className = "panel";
  const heading = document.createElement("h3");
  heading.textContent = title;
  const drawing = document.createElement("div");
  drawing.className = "drawing";
  drawing.setAttribute("role", "img");
  frame.append(heading, drawing);
  figure.querySelector(".panels").append(frame);
  const redraw = () => {
    const [traces, options, label] = draw();
    heading.textContent = label || title;
    drawing.setAttribute("aria-label", heading.textContent);
    Plotly.react(drawing, traces, options, config);
  };
  drawings.push({ drawing, redraw, figure });
  return redraw;
}

function drawAll() {
  const resized = new ResizeObserver((entries) => entries.forEach((e) => Plotly.Plots.resize(e.target)));
  for (const { drawing, redraw, figure } of drawings) {
    redraw();
    drawing.on("plotly_click", (event) => pick(figure, event.points[0].customdata));
    resized.observe(drawing);
  }
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", () => drawings.forEach(({ redraw }) => redraw()));
}

function pick(figure, [text, origin]) {
  const line = figure.querySelector(".picked");
  const command = document.createElement("code");
  command.textContent = origin;
  line.replaceChildren(`${text} — `, command);
}

// A legend above a narrow plot takes its room: short names stand two abreast, long ones alone.
function legendRows(lines) {
  const entries = lines.length + lines.some((line) => line.failed.length);
  const long = lines.some((line) => line.variant.length > 16);
  return long ? entries : Math.ceil(entries / 2);
}

// Peak memory and step time by depth.
function depthPlots(name, yTitle, write) {
  const figure = document.getElementById(`plot-${name}`);
  if (!figure) return;
  const panels = data[name];
  const values = panels.flatMap((each) => each.lines.flatMap((line) => line.points.map((p) => p.y)));
  const shared = name === "peak" ? { range: [0, Math.max(...values) * 1.08] } : {};
  const height = 250 + 19 * Math.max(...panels.map((each) => legendRows(each.lines)));
  for (const each of panels) {
    panel(figure, each.title, () => {
      const traces = each.lines.map((line) => ({
        name: line.variant,
        mode: "lines+markers",
        x: line.points.map((point) => point.x),
        y: line.points.map((point) => point.y),
        customdata: line.points.map((point) => [
          `${line.variant}, ${point.x} layers: ${write(point.y)}`, point.origin,
        ]),
        hovertemplate: "%{customdata[0]}<extra></extra>",
        line: { color: colourOf(line), dash: line.dash, width: 2 },
        marker: { color: colourOf(line), symbol: line.symbol, size: line.size },
      }));
      const failed = each.lines.flatMap((line) => line.failed.map((f) => ({ ...f, line })));
      if (failed.length) {
        traces.push({
          name: "no figure",
          mode: "markers",
          x: failed.map((each) => each.x),
          y: failed.map(() => 0.96),
          yaxis: "y2",
          customdata: failed.map(({ line, x, status, origin }) => [
            `${line.variant}, ${x} layers: ${status}`, origin,
          ]),
          hovertemplate: "%{customdata[0]}<extra></extra>",
          marker: { symbol: "x-thin", size: 11, line: { width: 2, color: failed.map((f) => colourOf(f.line)) } },
        });
      }
      const ticks = [...new Set(each.lines.flatMap((l) => [...l.points, ...l.failed].map((p) => p.x)))];
      const options = layout("layers", yTitle, { xaxis: { tickvals: ticks }, yaxis: shared });
      options.height = height;
      options.yaxis2 = { overlaying: "y", range: [0, 1], visible: false, fixedrange: true };
      return [traces, options];
    });
  }
}

// Memory against time on one step.
function tradePlot() {
  const figure = document.getElementById("plot-trade");
  if (!figure) return;
  const select = document.getElementById("trade-step");
  fill(select, data.trade.map((each) => each.title));
  const redraw = panel(figure, "", () => {
    const each = data.trade[select.selectedIndex];
    const front = each.points.filter((point) => point.front);
    const traces = [{
      name: "Pareto front: nothing is better in both",
      mode: "lines",
      x: front.map((point) => point.peak),
      y: front.map((point) => point.seconds),
      line: { shape: "hv", color: theme()("quiet"), width: 1.5 },
      hoverinfo: "skip",
    }];
    for (const point of each.points) {
      traces.push({
        name: point.variant,
        mode: "markers",
        x: [point.peak],
        y: [point.seconds],
        customdata: [[
          `${point.variant}: ${number(point.peak, 1)} MB, ${seconds(point.seconds)} s a step`, point.origin,
        ]],
        hovertemplate: "%{customdata[0]}<extra></extra>",
        marker: { color: colourOf(point), symbol: point.symbol, size: 13 },
      });
    }
    const options = layout("peak memory in MB", "step time in s", {
      xaxis: { rangemode: "tozero", separatethousands: true }, yaxis: { rangemode: "normal" },
    });
    if (figure.clientWidth < 600) options.height = 250 + 19 * traces.length;
    return [traces, options, each.title];
  });
  select.addEventListener("change", redraw);
}

function maxBatchPlot() {
  const figure = document.getElementById("plot-max-batch");
  if (!figure) return;
  for (const each of data.max_batch) {
    panel(figure, each.title, () => {
      const traces = each.bars.map((bars) => ({
        type: "bar",
        name: bars.name,
        x: bars.points.map((point) => point.variant.replace(" (", "<br>(")),
        y: bars.points.map((point) => point.batch),
        text: bars.points.map((point) => `${point.batch}`),
        textposition: "outside",
        cliponaxis: false,
        customdata: bars.points.map((point) => [
          `${point.variant}, ${bars.name}: batch ${point.batch}`, point.origin,
        ]),
        hovertemplate: "%{customdata[0]}<extra></extra>",
        marker: {
          color: bars.points.map((point) => (bars.source === "published" ? theme()("card") : colourOf(point))),
          pattern: { shape: bars.source === "predicted" ? "/" : "", fillmode: "replace", solidity: 0.3 },
          line: { width: 1.5, color: bars.points.map(colourOf) },
        },
      }));
      const options = layout("", "largest batch", { yaxis: {} });
      options.barmode = "group";
      options.showlegend = true;
      return [traces, options];
    });
  }
}

function fill(select, names) {
  select.replaceChildren(...names.map((name) => new Option(name)));
}

// The budget question: the least step time among what fits.
function ask() {
  const select = document.getElementById("ask-step");
  if (!select) return;
  const slider = document.getElementById("ask-slider");
  const budget = document.getElementById("ask-budget");
  const answer = document.getElementById("ask-answer");
  fill(select, data.steps.map((step) => step.name));
  const peaks = () => data.steps[select.selectedIndex].points.map((point) => point.peak);
  const bounds = () => [0.8 * Math.min(...peaks()), 1.1 * Math.max(...peaks())];

  function say() {
    const megabytes = Number(budget.value);
    const { points } = data.steps[select.selectedIndex];
    const fitting = points.filter((point) => point.peak <= megabytes);
    if (!fitting.length) {
      const least = points.reduce((a, b) => (b.peak < a.peak ? b : a));
      answer.textContent = `Nothing measured here fits ${number(megabytes, 0)} MB: the least is ` +
        `${number(least.peak, 1)} MB, with ${least.variant}.`;
      return;
    }
    const best = fitting.reduce((a, b) => (b.seconds < a.seconds ? b : a));
    const name = document.createElement("strong");
    name.textContent = best.variant;
    const cost = best.relative_time === null ? "" : ` (${number(best.relative_time, 2)} × original's time)`;
    answer.replaceChildren(
      `Within ${number(megabytes, 0)} MB, the least step time: `, name,
      `, with a peak of ${number(best.peak, 1)} MB and ${seconds(best.seconds)} s a step${cost}.`,
    );
  }
  slider.addEventListener("input", () => {
    const [low, high] = bounds();
    budget.value = Math.round(low + (high - low) * slider.value / 1000);
    say();
  });
  budget.addEventListener("input", () => {
    const [low, high] = bounds();
    slider.value = 1000 * (Number(budget.value) - low) / (high - low);
    say();
  });
  const restart = () => {
    budget.value = Math.round(Math.max(...peaks()) / 2);
    budget.dispatchEvent(new Event("input"));
  };
  select.addEventListener("change", restart);
  restart();
}

depthPlots("peak", "peak memory in MB", (value) => `peak ${number(value, 1)} MB`);
depthPlots("time", "step time in s", (value) => `${seconds(value)} s a step`);
tradePlot();
maxBatchPlot();
ask();
plotly.then(drawAll);
