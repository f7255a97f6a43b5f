"""Durations of the steps of kvbench-study reference."""


class Clock:
    """Expected durations: the mean of measured ones, otherwise the first guess.

    Guesses are scaled by the ratio of measured to guessed durations.
    """

    def __init__(self, plan, layers):
        self.plan, self.layers = plan, layers
        self.times = {}

    def guess(self, name):
        if name == "trace":
            # The forward pass computes all layers up to the last.
            return self.plan.trace_seconds * (0.6 + 0.4 * len(self.layers) / len(self.plan.layers))
        if name in self.plan.stages:
            stage = self.plan.stages[name]
            mine = [n for n in stage.layers if n in self.layers] or self.layers
            usual = stage.layers or self.plan.layers
            return stage.seconds * len(mine) / len(usual)
        return self.plan.reports[name.removeprefix("report ")].seconds

    def took(self, name, seconds):
        if seconds is not None:
            self.times.setdefault(name, []).append(seconds)

    def expected(self, name):
        if name in self.times:
            return sum(self.times[name]) / len(self.times[name])
        measured = sum(sum(seconds) for seconds in self.times.values())
        guessed = sum(self.guess(known) * len(seconds) for known, seconds in self.times.items())
        # Few steps pull the factor from 1 only by their weight.
        weight = self.guess(name)
        return weight * (measured + weight) / (guessed + weight)
