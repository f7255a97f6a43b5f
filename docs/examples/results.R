# The tables of docs/python.md in R, from its out.csv. Run `kvbench verify out.csv` first.

# Read
rows <- read.csv("out.csv", na.strings = c("", "nan"))
ok <- subset(rows, status == "ok")

# Mean error
means <- tapply(ok$rel_error, list(ok$algorithm, ok$budget_requested), mean)
print(round(means, 4))

# Against a baseline
heads <- aggregate(rel_error ~ trace + prompt + layer + q_head + budget_requested + algorithm, ok, mean)
pairs <- merge(heads, subset(heads, algorithm == "uniform", -algorithm),
               by = c("trace", "prompt", "layer", "q_head", "budget_requested"))
ratios <- tapply(pairs$rel_error.x / pairs$rel_error.y, list(pairs$budget_requested, pairs$algorithm),
                 function(x) exp(mean(log(x))))
print(round(ratios, 3))

# Best method of each layer
quarter <- subset(ok, budget_requested == 0.25)
layers <- tapply(quarter$rel_error, list(quarter$layer, quarter$algorithm), mean)
best <- colnames(layers)[apply(layers, 1, which.min)]
names(best) <- rownames(layers)
print(best)

# Side tables
queries <- read.csv("out.queries.csv", na.strings = c("", "nan"))
quarter <- subset(queries, budget_requested == 0.25)
offsets <- tapply(quarter$rel_error_mean, list(quarter$first, quarter$algorithm), mean)
print(round(offsets, 4))

# A picture
curves <- aggregate(cbind(middle_ratio, rel_error) ~ algorithm + budget_requested, ok, mean)
pdf("curves.pdf")
plot(rel_error ~ middle_ratio, curves, log = "xy", type = "n",
     xlab = "bytes held of the middle", ylab = "relative error")
names <- unique(curves$algorithm)
for (i in seq_along(names)) {
  lines(rel_error ~ middle_ratio, subset(curves, algorithm == names[i]), type = "b", col = i)
}
legend("topright", names, col = seq_along(names), lty = 1)
invisible(dev.off())
