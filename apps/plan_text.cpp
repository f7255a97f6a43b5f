#include "plan_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/printable.hpp"
#include "replay/resources.hpp"
#include "replay/side_tables.hpp"
#include "replay/windows.hpp"
#include "terminal.hpp"

namespace kvbench {
namespace {

double mib(std::uint64_t bytes) {
  return static_cast<double>(bytes) / 0x1p20;
}

struct UnitNeed {
  const Unit* unit;
  MemoryNeed need;
  std::uint64_t bytes;  // with all threads running
};

std::vector<UnitNeed> needs_of(const Plan& plan, int threads) {
  const auto heads = static_cast<std::uint64_t>(heads_at_once(plan, threads));
  const std::uint64_t always = plan.options.program_bytes + kept_bytes(plan);
  std::vector<UnitNeed> out;
  for (const Unit& unit : plan.units) {
    MemoryNeed need = memory_need(plan, unit);
    const std::uint64_t bytes = always + need.total(heads, static_cast<std::uint64_t>(threads));
    out.push_back({&unit, std::move(need), bytes});
  }
  return out;
}

constexpr std::size_t kMaxListed = 12;  // longer lists are abbreviated
constexpr std::size_t kFirstListed = 3;

// "a, b, c", abbreviated to "a, b, c, ..., z".
template <class Names>
std::string abbreviated(const Names& names) {
  const std::vector<std::string> all(names.begin(), names.end());
  return all.size() <= kMaxListed
             ? fmt::format("{}", fmt::join(all, ", "))
             : fmt::format("{}, ..., {}", fmt::join(all.begin(), all.begin() + kFirstListed, ", "),
                           all.back());
}

std::string range_text(const SpecRange& range) {
  return fmt::format("{}={} is {}", range.key, range.text, abbreviated(range.values));
}

void print_totals(const Plan& plan, const std::vector<UnitNeed>& needs, int threads) {
  const Range jobs = plan.shard_jobs();
  const Range all{0, plan.jobs()};
  fmt::print("plan: {} KV heads x {} entries = {} jobs, {} rows\n", plan.units.size(),
             plan.entries.size(), plan.jobs(), plan.row_range(all).size());
  if (plan.options.shard_count > 1) {
    fmt::print("this shard ({}/{}): jobs {} to {}, {} rows\n", plan.options.shard_index,
               plan.options.shard_count, jobs.begin, jobs.end, plan.row_range(jobs).size());
  }
  const auto most = std::ranges::max_element(needs, {}, &UnitNeed::bytes);
  fmt::print("memory: at most {:.1f} MiB with {} threads (prompt {} layer {})\n", mib(most->bytes),
             threads, printable(plan.prompt_meta(*most->unit).id),
             plan.layer_meta(*most->unit).layer);
  for (const TableSpec* table : side_tables(plan)) {
    fmt::print("OUT.{}.csv: at most {} lines\n", table->name(), most_lines(plan, table));
  }
}

void print_budgets(const Plan& plan) {
  std::string text;
  for (const auto& [budget, share] : plan.budgets_of_cache()) {
    text += fmt::format("{}{} is {:.2g} ({:.2g}x smaller)", text.empty() ? "" : ", ", budget, share,
                        1.0 / share);
  }
  if (!text.empty()) {
    fmt::print("budgets, of the whole cache: {}\n", text);
  }
}

// For the whole plan, not only this shard.
void print_algorithms(const Plan& plan, const std::vector<UnitNeed>& needs) {
  const auto units = static_cast<Index>(plan.units.size());
  const auto per_unit = static_cast<Index>(plan.entries.size());
  const Index heads = per_unit > 0 ? plan.row_range({0, plan.jobs()}).size() / per_unit : 0;
  std::map<std::string, std::uint64_t> largest;  // job of an algorithm
  for (const UnitNeed& one : needs) {
    for (const auto& [name, bytes] : one.need.jobs) {
      largest[name] = std::max(largest[name], bytes);
    }
  }
  fmt::print("\n{:<19} {:>7} {:>9} {:>9} {:>8}  {}\n", "algorithm", "entries", "jobs", "rows",
             "job MiB", "parameters");
  for (std::size_t v = 0; v < plan.variants.size(); ++v) {
    Index entries = 0;
    for (const Entries::Setting& s : plan.entries.settings()) {
      entries += s.first.variant == v ? std::ssize(*s.seeds) : 0;
    }
    const std::string name = plan.variants[v].label();
    fmt::print("{:<19} {:>7} {:>9} {:>9} {:>8.1f}  {}\n", name, entries, entries * units,
               entries * heads, mib(largest[name]), plan.variants[v].label_params());
  }
}

// KV heads with equal sizes and memory.
struct HeadGroup {
  Index heads = 0;
  std::vector<std::string> traces, prompts;
  std::set<Index> layers, kv_heads;
};

void add_once(std::vector<std::string>& names, const std::string& name) {
  if (std::ranges::find(names, name) == names.end()) {
    names.push_back(name);
  }
}

std::vector<std::string> texts(const std::set<Index>& numbers) {
  std::vector<std::string> out;
  for (const Index x : numbers) {
    out.push_back(fmt::format("{}", x));
  }
  return out;
}

// One line per group of equal heads.
void print_units(const Plan& plan, const std::vector<UnitNeed>& needs) {
  std::vector<std::pair<std::string, HeadGroup>> lines;
  for (const auto& [unit, need, bytes] : needs) {
    const LayerMeta& l = plan.layer_meta(*unit);
    const Windows w = windows_of(plan.options, l);
    const auto by_bytes = [](const auto& x, const auto& y) { return x.second < y.second; };
    const auto largest = std::ranges::max_element(need.jobs, by_bytes);
    const std::string figures =
        fmt::format("{:>7} {:>7} {:>7}  {:<18} {:>8.1f}", unit->q_heads.size(), l.n,
                    w.middle.size(), largest == need.jobs.end() ? "" : largest->first, mib(bytes));
    auto line = std::ranges::find(lines, figures, &std::pair<std::string, HeadGroup>::first);
    if (line == lines.end()) {
      line = lines.insert(lines.end(), {figures, {}});
    }
    HeadGroup& group = line->second;
    ++group.heads;
    add_once(group.traces, printable(plan.trace_names[unit->trace]));
    add_once(group.prompts, printable(plan.prompt_meta(*unit).id));
    group.layers.insert(l.layer);
    group.kv_heads.insert(unit->kv_head);
  }
  fmt::print("\n{:>8} {:>7} {:>7} {:>7}  {:<18} {:>8}  {}\n", "KV heads", "q_heads", "tokens",
             "middle", "largest job", "MiB", "of");
  for (const auto& [figures, group] : lines) {
    fmt::print("{:>8} {}  {}; prompts {}; layers {}; KV heads {}\n", group.heads, figures,
               abbreviated(group.traces), abbreviated(group.prompts),
               abbreviated(texts(group.layers)), abbreviated(texts(group.kv_heads)));
  }
}

}  // namespace

void print_plan(const Plan& plan) {
  const int threads = usable_threads(plan);
  const std::vector<UnitNeed> needs = needs_of(plan, threads);
  if (const std::string ranges = ranges_line(plan); !ranges.empty()) {
    fmt::print("{}\n", ranges);
  }
  print_totals(plan, needs, threads);
  print_budgets(plan);
  print_algorithms(plan, needs);
  print_units(plan, needs);
}

std::string ranges_line(const PlanSpec& plan) {
  std::vector<std::string> all;
  std::ranges::transform(plan.ranges, std::back_inserter(all), range_text);
  return all.empty() ? "" : fmt::format("ranges: {}", fmt::join(all, "; "));
}

}  // namespace kvbench
