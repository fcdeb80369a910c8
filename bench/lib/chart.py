"""Charts that can be read without the text: lines that are labelled at their ends, and bars with their values. Colours
are those of Okabe and Ito, which people who do not tell red from green can tell apart; the raw limit is always grey."""
import math

COLOURS = {
    "raw": "#777777",
    "ws": "#0072B2",
    "http": "#D55E00",
    "http-close": "#E69F00",
    "pending": "#0072B2",
    "connection": "#009E73",
    "stream": "#CC79A7",
    "conflux": "#0072B2",
    "sandbox-agent": "#E69F00",
    "cloudflare-0.3.7": "#CC79A7",
}
NAMES = {"raw": "raw limit", "ws": "one WebSocket", "http": "HTTP keep-alive", "http-close": "HTTP, a connection each"}


def setup():
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "conflux",
            "font.family": "sans-serif",
            "font.size": 11,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#e4e4e4",
            "axes.axisbelow": True,
            "axes.titlesize": 13,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "figure.dpi": 100,
        }
    )
    import matplotlib.pyplot as plt

    return plt


def human(v, _=None):
    for size, mark in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(v) >= size:
            return f"{v / size:g}{mark}"
    return f"{v:g}"


def seconds(us, _=None):
    for size, unit in ((1e6, "s"), (1e3, "ms"), (1, "µs")):
        if us >= size or size == 1:
            return f"{us / size:,.0f} {unit}" if us >= 100 * size else f"{us / size:.3g} {unit}"


def scale(axis, low, high, form):
    """Ticks of a log axis: 1, 2 and 5 where powers of ten alone would be too few."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if math.log10(high / low) < 2 else (1,)))
    axis.set_major_formatter(FuncFormatter(form))


def apart(ys, least, log):
    """Places for labels, in the order of ys, none nearer to another than `least` of the axis, in log10 when log."""
    at = [math.log10(y) if log else y for y in ys]
    order = sorted(range(len(at)), key=lambda i: at[i])
    for _ in range(50):
        for a, b in zip(order, order[1:]):
            gap = at[b] - at[a]
            if gap < least:
                at[a] -= (least - gap) / 2
                at[b] += (least - gap) / 2
    return [10**y if log else y for y in at]


def lines(plt, out, title, xlabel, ylabel, series, xticks, yformat=human, xformat=human, limit=None, linear_x=False):
    """series: (key, label, [(x, low, median, high)]), drawn with their range; labelled at their right end."""
    fig, ax = plt.subplots(figsize=(8.2, 4.6))
    series = [s for s in series if s[2]]
    for key, label, points in series:
        x, low, mid, high = zip(*points)
        raw = key == "raw"
        ax.plot(
            x,
            mid,
            color=COLOURS[key],
            linestyle="--" if raw else "-",
            marker=None if raw else "o",
            markersize=4,
            linewidth=1.8,
        )
        ax.fill_between(x, low, high, color=COLOURS[key], alpha=0.15, linewidth=0)
    ax.set_yscale("log")
    if not linear_x:
        ax.set_xscale("log")
    ax.set_xticks(xticks, [xformat(v) for v in xticks])
    ax.minorticks_off()
    scale(ax.yaxis, *ax.get_ylim(), yformat)
    if limit:
        ax.axhline(limit[0], color="#000000", linewidth=1, linestyle=":")
        ax.annotate(
            limit[1], (xticks[-1], limit[0]), textcoords="offset points", xytext=(0, 4), ha="right", fontsize=9.5
        )
    low, high = ax.get_ylim()
    span = math.log10(high / low)
    ends = [s[2][-1][2] for s in series]
    for (key, label, points), y in zip(series, apart(ends, span * 0.062, True)):
        ax.annotate(
            label,
            (points[-1][0], points[-1][2]),
            xytext=(1.02, y),
            textcoords=ax.get_yaxis_transform(),
            color=COLOURS[key],
            va="center",
            fontsize=10.5,
            fontweight="bold",
            annotation_clip=False,
        )
    return finish(plt, fig, ax, out, title, xlabel, ylabel)


def finish(plt, fig, ax, out, title, xlabel, ylabel):
    ax.set_title(title, pad=12)
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    ax.annotate(
        "median of the rounds; shade or black line: their range",
        (1, 0),
        xycoords="axes fraction",
        xytext=(0, -42),
        textcoords="offset points",
        ha="right",
        fontsize=8.5,
        color="#666666",
    )
    fig.savefig(out, bbox_inches="tight", metadata={"Date": None})
    plt.close(fig)
    return title


def bars(plt, out, title, xlabel, rows, form, limit=None, log=True):
    """rows: (colour key, label, low, median, high), top to bottom; the value stands at the bar's end."""
    fig, ax = plt.subplots(figsize=(8.2, 0.8 + 0.42 * len(rows)))
    y = range(len(rows))[::-1]
    for at, (key, label, low, mid, high) in zip(y, rows):
        ax.barh(at, mid, color=COLOURS[key], height=0.62, alpha=0.9)
        ax.plot([low, high], [at, at], color="#222222", linewidth=1.2)
        ax.annotate(
            form(mid),
            (max(mid, high), at),
            textcoords="offset points",
            xytext=(6, 0),
            va="center",
            fontsize=10,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )
    ax.set_yticks(list(y), [r[1] for r in rows])
    ax.grid(axis="y", visible=False)
    ax.tick_params(axis="y", length=0)
    if log:
        ax.set_xscale("log")
        ax.set_xlim(10 ** math.floor(math.log10(min(r[2] for r in rows) * 0.6)), max(r[4] for r in rows) * 4)
        scale(ax.xaxis, *ax.get_xlim(), form)
    else:
        ax.set_xlim(0, max(r[4] for r in rows) * 1.15 or 1)
    ax.minorticks_off()
    if limit:
        ax.axvline(limit[0], color="#000000", linewidth=1, linestyle=":")
        ax.annotate(limit[1], (limit[0], len(rows) - 0.45), textcoords="offset points", xytext=(3, 0), fontsize=9.5)
    return finish(plt, fig, ax, out, title, xlabel, "")
