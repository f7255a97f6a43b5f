#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "trace/caches.hpp"
#include "trace/canary.hpp"
#include "trace/checked_read.hpp"

namespace kvbench {

using h5::Hdf5Object;
using h5::Place;

namespace caches {

enum Array : std::uint8_t { k, v, log_weight, token, counted, k_den, log_weight_den };
constexpr h5::Spec array_spec(const char* name, h5::Spec::Type type = h5::Spec::reals) {
  return {name, 0, "", type};
}
constexpr std::array kArrays{array_spec("k"),
                             array_spec("v"),
                             array_spec("log_weight"),
                             array_spec("token", h5::Spec::integers),
                             array_spec("counted", h5::Spec::integers),
                             array_spec("k_den"),
                             array_spec("log_weight_den")};

// A group with attributes of a cache and datasets, or why it cannot be read.
struct StoredEntry {
  std::string fault;
  HeadCache attributes;  // without arrays
  std::array<std::optional<h5::Tensor>, kArrays.size()> arrays;
};
using StoredEntries = std::map<std::string, StoredEntry>;  // by path in the file

struct Contents {
  CachesMeta meta;
  std::vector<CacheGroup> groups;
  StoredEntries entries;
};

}  // namespace caches

namespace {

using caches::Array;
using caches::Contents;
using caches::kArrays;
using caches::StoredEntries;
using caches::StoredEntry;

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '+' || c == '-';
}

bool is_control(char c) {
  return static_cast<unsigned char>(c) < ' ' || c == '\x7f';
}

void check_algorithm(const std::string& name, const Place& where) {
  const auto allowed = [](char c) { return is_word(c) || c == '@'; };
  where.expect(!name.empty() && name.size() <= 100 && std::ranges::all_of(name, allowed),
               "algorithm is \"{}\", expected up to 100 letters, digits and . _ + - @", name);
}

// key=value;key=value, keys ascending and different.
void check_params(const std::string& params, const Place& where) {
  std::string_view last;
  for (std::string_view rest = params; !rest.empty();) {
    const auto end = std::min(rest.find(';'), rest.size());
    const std::string_view part = rest.substr(0, end);
    const std::string_view key = part.substr(0, part.find('='));
    where.expect(key != part && !key.empty() && key > last && end + 1 != rest.size() &&
                     std::ranges::all_of(key, is_word) && std::ranges::none_of(part, is_control),
                 "params is \"{}\", expected key=value;key=value with ascending keys", params);
    last = key;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

Index count_of(const Hdf5Object& root, const char* name) {
  return h5::required_int(root, name, 0, std::numeric_limits<Index>::max(), "at least 0");
}

void read_attribute(const Hdf5Object& at, const char* name, std::string& to) {
  to = h5::optional_string(at, name).value_or("");
  at.where.expect(std::ranges::none_of(to, is_control),
                  "{} is \"{}\", expected a line without control characters", name, to);
}

void read_attribute(const Hdf5Object& at, const char* name, std::optional<double>& ms) {
  ms = h5::optional_number(at, name, 0.0, std::numeric_limits<double>::max(),
                           "a finite number of at least 0");
}

// Bytes or tokens of one KV head. The bound is far above any, so that sums stay in 64 bits.
template <class Count>
void read_attribute(const Hdf5Object& at, const char* name, Count& to) {
  constexpr Index kMax = Index{1} << 40;
  const auto expected = fmt::format("at least 0 and at most {}", kMax);
  if (const auto found = h5::optional_number<Index>(at, name, 0, kMax, expected)) {
    to = *found;
  }
}

// Reads the arrays of one entry.
struct EntryReader {
  const h5::InputFile& file;
  const StoredEntry& entry;
  Place where;

  Matrix matrix(Array which, Index rows, Index cols) const;
  // Logarithms of weights in [0, largest float]; empty if absent.
  std::vector<float> log_weights(Array which, Index rows) const;
  // Positions of tokens, each at least as large as low(last one) says. `expected` ends the message.
  // Empty if the dataset is absent.
  template <class Low>
  std::vector<std::int32_t> positions(Array which, Index rows, const Low& low,
                                      const char* expected) const;

 private:
  // An array [rows, cols], or [rows] with cols 0. A negative `rows` means at most -rows.
  const h5::Tensor& shaped(Array which, Index rows, Index cols) const;
};

const h5::Tensor& EntryReader::shaped(Array which, Index rows, Index cols) const {
  const std::optional<h5::Tensor>& array = entry.arrays[which];
  (where / kArrays[which].name).expect(array.has_value(), "dataset is missing");
  const std::vector<std::uint64_t>& sizes = array->data->sizes;
  const auto max_rows = static_cast<std::uint64_t>(std::abs(rows));
  const bool fits = sizes.size() == (cols == 0 ? 1 : 2) &&
                    (rows < 0 ? sizes[0] <= max_rows : sizes[0] == max_rows) &&
                    (cols == 0 || sizes[1] == static_cast<std::uint64_t>(cols));
  array->where.expect(fits, "shape is [{}], expected [{}{}{}]", fmt::join(sizes, ", "),
                      rows < 0 ? "at most " : "", max_rows,
                      cols == 0 ? "" : fmt::format(", {}", cols));
  return *array;
}

Matrix EntryReader::matrix(Array which, Index rows, Index cols) const {
  const h5::Tensor& array = shaped(which, rows, cols);
  Matrix out(array.rows(), cols);
  h5::read_whole(file, array, out.data());
  h5::check_finite(array, out.data(), out.rows(), cols, [](Index row, Index channel) {
    return fmt::format("row {}, channel {}", row, channel);
  });
  return out;
}

std::vector<float> EntryReader::log_weights(Array which, Index rows) const {
  if (!entry.arrays[which]) {
    return {};
  }
  const h5::Tensor& array = shaped(which, rows, 0);
  std::vector<float> out(array.width());
  h5::read_whole(file, array, out.data());
  // The nearest float may be above it, and its weight infinite.
  const double largest = std::log(static_cast<double>(std::numeric_limits<float>::max()));
  for (std::size_t i = 0; i < out.size(); ++i) {
    array.where.expect(out[i] <= largest,
                       "entry {} is {}, expected at most {:.4g} (-inf: weight 0)", i, out[i],
                       largest);
  }
  return out;
}

template <class Low>
std::vector<std::int32_t> EntryReader::positions(Array which, Index rows, const Low& low,
                                                 const char* expected) const {
  if (!entry.arrays[which]) {
    return {};
  }
  const h5::Tensor& array = shaped(which, rows, 0);
  std::vector<std::int32_t> out;
  std::int64_t last = -1;
  for (const std::int64_t t : h5::read_integers(file, array)) {
    array.where.expect(low(last) <= t && t <= std::numeric_limits<std::int32_t>::max(),
                       "row {} is {}, expected {}", out.size(), t, expected);
    out.push_back(static_cast<std::int32_t>(last = t));
  }
  return out;
}

StoredEntry describe_entry(const Hdf5Object& at) {
  StoredEntry entry;
  caches::each_attribute(entry.attributes,
                         [&](const char* name, auto& x) { read_attribute(at, name, x); });
  if (entry.attributes.absent()) {
    return entry;
  }
  const std::vector<std::string> names = h5::link_names(at);
  for (std::size_t i = 0; i < kArrays.size(); ++i) {
    if (std::ranges::count(names, kArrays[i].name) > 0) {
      entry.arrays[i] = h5::open_tensor(at, kArrays[i], DType::float32);
    }
  }
  return entry;
}

// The steps from a group to its entries. Empty: any name.
constexpr std::array<std::string_view, 5> kSteps{"prompts", "", "layers", "", ""};

// Describes the entries below `at`, which is `depth` steps below a group. What cannot be read is a
// fault of that entry alone, or of a step on the way to it.
void describe_entries(const Hdf5Object& at, std::size_t depth, StoredEntries& out) {
  if (depth == kSteps.size()) {
    out.insert_or_assign(at.where.path, describe_entry(at));
    return;
  }
  const std::string_view step = kSteps[depth];
  for (const std::string& name : h5::link_names(at)) {
    if (!step.empty() && name != step) {
      continue;
    }
    try {
      describe_entries(h5::open_group(at, name), depth + 1, out);
    } catch (const InputError& e) {
      out[(at.where / name).path].fault = e.what();
    }
  }
}

CacheGroup read_group(const Hdf5Object& group, const std::string& name) {
  CacheGroup out;
  out.name = name;
  out.algorithm = h5::required_string(group, "algorithm");
  check_algorithm(out.algorithm, group.where);
  out.params = h5::required_string(group, "params");
  check_params(out.params, group.where);
  out.budget = h5::optional_number(group, "budget", 0.0, 1.0, "a fraction in [0, 1]");
  out.seed = h5::optional_number<std::uint64_t>(group, "seed").value_or(0);
  const auto choice = [&](const char* member, std::string& to, const auto&... choices) {
    to = h5::one_of(group, member, h5::optional_string(group, member).value_or(to), {choices...});
  };
  choice("scores", out.scores, "past", "all", "none");
  choice("scope", out.scope, "head", "layer", "layers");
  return out;
}

CachesMeta read_root(const Hdf5Object& root) {
  h5::check_format(root, caches::kFormat, caches::kVersion);
  CachesMeta m;
  m.trace_sha256 = h5::optional_strings(root, "trace_sha256");
  root.where.expect(!m.trace_sha256.empty(),
                    "attribute trace_sha256 is missing, expected a string or an array of them");
  m.protocol = h5::one_of(root, "protocol", h5::optional_string(root, "protocol").value_or(""),
                          {"prefill", "stream"});
  m.sink = count_of(root, "sink");
  m.recent = count_of(root, "recent");
  m.queries = count_of(root, "queries");
  m.plan = h5::optional_string(root, "plan").value_or("");
  return m;
}

Contents read_contents(const Hdf5Object& root) {
  Contents out;
  out.meta = read_root(root);
  std::map<std::tuple<std::string, std::string, std::optional<double>, std::uint64_t>, std::string>
      seen;
  for (const std::string& name : h5::link_names(root)) {
    const Hdf5Object at = h5::open_group(root, name);
    const CacheGroup& group = out.groups.emplace_back(read_group(at, name));
    const auto [first, fresh] =
        seen.emplace(std::tuple{group.algorithm, group.params, group.budget, group.seed}, name);
    at.where.expect(fresh,
                    "has the algorithm, params, budget and seed of {}, expected one group of each",
                    first->second);
    describe_entries(at, 0, out.entries);
  }
  root.where.expect(!out.groups.empty(), "holds no group, expected one per algorithm and setting");
  return out;
}

}  // namespace

struct CacheReader::Impl {
  h5::InputFile file;
  caches::Contents contents;

  explicit Impl(const std::string& path)
      : file(path, "caches as docs/trace_format.md says"),
        contents(h5::read_guarded(file, read_contents)) {}

  std::string inside(std::size_t group, const CachePlace& at) const {
    return fmt::format("/{}/{}", contents.groups[group].name, caches::entry_path(at));
  }
  // Null if the group has no such entry.
  const StoredEntry* find(std::size_t group, const CachePlace& at) const {
    const std::string path = inside(group, at);
    for (std::size_t end = 0; end != std::string::npos;) {
      end = path.find('/', end + 1);
      const auto found = contents.entries.find(path.substr(0, end));
      if (found != contents.entries.end() && !found->second.fault.empty()) {
        throw InputError(found->second.fault);
      }
      if (found != contents.entries.end() && end == std::string::npos) {
        return &found->second;
      }
    }
    return nullptr;
  }
};

std::string caches::entry_path(const CachePlace& place) {
  return fmt::format("prompts/{}/layers/{}/{}", place.prompt, place.layer, place.kv_head);
}

CacheReader::CacheReader(const std::string& path) : impl_(std::make_unique<Impl>(path)) {}

CacheReader::~CacheReader() = default;
CacheReader::CacheReader(CacheReader&&) noexcept = default;
CacheReader& CacheReader::operator=(CacheReader&&) noexcept = default;

const std::string& CacheReader::path() const {
  return impl_->file.path();
}

const CachesMeta& CacheReader::meta() const {
  return impl_->contents.meta;
}

const std::vector<CacheGroup>& CacheReader::groups() const {
  return impl_->contents.groups;
}

bool CacheReader::has(std::size_t group, const CachePlace& place) const {
  return impl_->find(group, place) != nullptr;
}

std::string CacheReader::where(std::size_t group, const CachePlace& place) const {
  return h5::one_line(fmt::format("{}: {}", impl_->file.path(), impl_->inside(group, place)));
}

std::optional<HeadCache> CacheReader::read(std::size_t group, const CachePlace& at,
                                           const Shape& shape) const {
  const StoredEntry* entry = impl_->find(group, at);
  if (entry == nullptr) {
    return std::nullopt;
  }
  HeadCache out = entry->attributes;
  if (out.absent()) {
    return out;
  }
  const EntryReader from{impl_->file, *entry, {path(), impl_->inside(group, at)}};
  out.k = from.matrix(caches::k, -shape.largest, shape.d);
  const Index rows = out.k.rows();
  out.v = from.matrix(caches::v, rows, shape.dv);
  out.log_weight = from.log_weights(caches::log_weight, rows);
  out.token = from.positions(
      caches::token, rows, [](std::int64_t) { return -1; }, "a position, or -1 where it was made");
  out.counted = from.positions(
      caches::counted, -rows, [](std::int64_t last) { return last + 1; }, "ascending positions");
  const bool own_keys = entry->arrays[caches::k_den].has_value();
  if (own_keys || entry->arrays[caches::log_weight_den]) {
    CacheDenominator& den = out.denominator.emplace();
    if (own_keys) {
      den.k = from.matrix(caches::k_den, -shape.largest, shape.d);
    }
    den.log_weight = from.log_weights(caches::log_weight_den, den.k ? den.k->rows() : rows);
  }
  return out;
}

}  // namespace kvbench
