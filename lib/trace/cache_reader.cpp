#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "core/float16.hpp"
#include "trace/caches.hpp"
#include "trace/dataset.hpp"
#include "trace/slab_read.hpp"
#include "trace/survey.hpp"

namespace kvbench {

using h5::Object;
using h5::Place;

namespace {

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '+' || c == '-';
}

bool is_control(char c) {
  return static_cast<unsigned char>(c) < ' ' || c == '\x7f';
}

void check_algorithm(const std::string& name, const Place& where) {
  const auto allowed = [](char c) { return is_word(c) || c == '@'; };
  if (name.empty() || name.size() > 100 || !std::ranges::all_of(name, allowed)) {
    where.refuse("algorithm is \"{}\", expected up to 100 letters, digits and . _ + - @", name);
  }
}

// key=value;key=value, keys ascending and different.
void check_params(const std::string& params, const Place& where) {
  std::string_view last;
  for (std::string_view rest = params; !rest.empty();) {
    const auto end = std::min(rest.find(';'), rest.size());
    const std::string_view part = rest.substr(0, end);
    const std::string_view key = part.substr(0, part.find('='));
    if (key == part || key.empty() || key <= last || end + 1 == rest.size() ||
        !std::ranges::all_of(key, is_word) ||
        std::ranges::any_of(part, [](char c) { return c < ' '; })) {
      where.refuse("params is \"{}\", expected key=value;key=value with ascending keys", params);
    }
    last = key;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

std::string one_of(const Object& at, const char* name, std::string fallback,
                   std::initializer_list<std::string_view> choices) {
  std::string value = h5::optional_string(at, name).value_or(std::move(fallback));
  if (std::ranges::find(choices, value) == choices.end()) {
    at.where.refuse("{} is \"{}\", expected {}", name, value, fmt::join(choices, ", "));
  }
  return value;
}

Index at_least_0(const Object& at, const char* name) {
  const Index value = h5::required_int(at, name);
  if (value < 0) {
    at.where.refuse("{} is {}, expected at least 0", name, value);
  }
  return value;
}

// Bytes or tokens of one KV head. The bound is far above any, so that sums stay in 64 bits.
std::optional<Index> optional_count(const Object& at, const char* name) {
  constexpr std::uint64_t kMax = std::uint64_t{1} << 40;
  const auto value = h5::optional_unsigned(at, name);
  if (value && *value > kMax) {
    at.where.refuse("{} is {}, expected at most {}", name, *value, kMax);
  }
  return value;
}

std::optional<double> optional_time(const Object& at, const char* name) {
  const auto value = h5::optional_float(at, name);
  if (value && !(*value >= 0.0 && std::isfinite(*value))) {
    at.where.refuse("{} is {}, expected a finite number of at least 0", name, *value);
  }
  return value;
}

std::string optional_line(const Object& at, const char* name) {
  std::string value = h5::optional_string(at, name).value_or("");
  if (std::ranges::any_of(value, is_control)) {
    at.where.refuse("{} is \"{}\", expected a line without control characters", name, value);
  }
  return value;
}

struct Entry : Object {
  const h5::InputFile& file;
};

// A dataset whose type, shape and storage have been checked.
struct Array {
  const h5::InputFile& file;
  const h5::Dataset& data;
  Place where;

  Index rows() const { return static_cast<Index>(data.sizes[0]); }
  void read(float* to) const { read(h5::whole_reals(data, where, to)); }
  void read(std::int64_t* to) const { read(h5::whole_integers(data, where, to)); }

 private:
  void read(const h5::Slab& all) const {
    if (rows() > 0) {
      h5::read_slabs(file, {&all, 1});
    }
  }
};

// [rows, cols], or [rows] with cols 0. A negative `rows` means at most -rows.
Array open_array(const Entry& entry, const char* name, bool reals, Index rows, Index cols) {
  const Object object = h5::open_dataset(entry, name);
  Array out{entry.file, h5::readable(object), object.where};
  const h5::Element& e = out.data.element;
  if (!e.standard || (e.kind == h5::Element::Kind::real) != reals) {
    out.where.refuse("elements are of another type, expected {}",
                     reals ? "16-, 32- or 64-bit floats" : "integers");
  }
  const std::vector<std::uint64_t>& sizes = out.data.sizes;
  const auto max_rows = static_cast<std::uint64_t>(std::abs(rows));
  const bool fits = sizes.size() == (cols == 0 ? 1 : 2) &&
                    (rows < 0 ? sizes[0] <= max_rows : sizes[0] == max_rows) &&
                    (cols == 0 || sizes[1] == static_cast<std::uint64_t>(cols));
  if (!fits) {
    out.where.refuse("shape is [{}], expected [{}{}{}]", fmt::join(sizes, ", "),
                     rows < 0 ? "at most " : "", max_rows,
                     cols == 0 ? "" : fmt::format(", {}", cols));
  }
  if (out.rows() > 0) {
    h5::check_storage(out.data, out.where, entry.file.bytes());
  }
  return out;
}

Matrix read_matrix(const Entry& entry, const char* name, Index rows, Index cols) {
  const Array from = open_array(entry, name, /*reals=*/true, rows, cols);
  Matrix out(from.rows(), cols);
  from.read(out.data());
  const Index count = out.rows() * cols;
  const Index bad = first_non_finite(out.data(), count);
  if (bad != count) {
    from.where.refuse("row {}, channel {} is {}, expected finite values", bad / cols, bad % cols,
                      out.data()[bad]);
  }
  return out;
}

// Logarithms of weights in [0, largest float]; empty if absent.
std::vector<float> read_log_weights(const Entry& entry, const char* name, Index rows) {
  if (!h5::has_link(entry, name)) {
    return {};
  }
  const Array from = open_array(entry, name, /*reals=*/true, rows, 0);
  std::vector<float> out(rows);
  from.read(out.data());
  // The nearest float may be above it, and its weight infinite.
  const double largest = std::log(static_cast<double>(std::numeric_limits<float>::max()));
  const auto bad = std::ranges::find_if(out, [&](float x) { return !(x <= largest); });
  if (bad != out.end()) {
    from.where.refuse("entry {} is {}, expected at most {:.4g} (-inf: weight 0)", bad - out.begin(),
                      *bad, largest);
  }
  return out;
}

// Positions of tokens, each at least as large as low(last one) says. `expected` ends the message.
// Empty if the dataset is absent.
template <class Low>
std::vector<std::int32_t> read_positions(const Entry& entry, const char* name, Index rows,
                                         const Low& low, const char* expected) {
  if (!h5::has_link(entry, name)) {
    return {};
  }
  const Array from = open_array(entry, name, /*reals=*/false, rows, 0);
  std::vector<std::int64_t> wide(from.rows());
  from.read(wide.data());
  std::vector<std::int32_t> out;
  std::int64_t last = -1;
  for (const std::int64_t t : wide) {
    if (t < low(last) || t > std::numeric_limits<std::int32_t>::max()) {
      from.where.refuse("row {} is {}, expected {}", out.size(), t, expected);
    }
    out.push_back(static_cast<std::int32_t>(last = t));
  }
  return out;
}

CacheGroup read_group(const Object& root, const std::string& name) {
  const Object group = h5::open_group(root, name);
  CacheGroup out;
  out.name = name;
  out.algorithm = h5::required_string(group, "algorithm");
  check_algorithm(out.algorithm, group.where);
  out.params = h5::required_string(group, "params");
  check_params(out.params, group.where);
  out.budget = h5::optional_float(group, "budget");
  if (out.budget && !(*out.budget >= 0.0 && *out.budget <= 1.0)) {
    group.where.refuse("budget is {}, expected a fraction in [0, 1]", *out.budget);
  }
  out.seed = h5::optional_unsigned(group, "seed").value_or(0);
  out.scores = one_of(group, "scores", out.scores, {"past", "all", "none"});
  out.scope = one_of(group, "scope", out.scope, {"head", "layer", "layers"});
  return out;
}

}  // namespace

const h5::Request& caches::request() {
  static const h5::Request request{
      {"*/prompts/*/layers/*/*/k", "*/prompts/*/layers/*/*/v", "*/prompts/*/layers/*/*/log_weight",
       "*/prompts/*/layers/*/*/token", "*/prompts/*/layers/*/*/counted",
       "*/prompts/*/layers/*/*/k_den", "*/prompts/*/layers/*/*/log_weight_den"},
      {"format",     "version",         "trace_sha256", "protocol",
       "sink",       "recent",          "queries",      "plan",
       "algorithm",  "params",          "budget",       "seed",
       "scores",     "scope",           "aux_bytes",    "payload_bytes",
       "quantised",  "transient_bytes", "compress_ms",  "scoring_queries",
       "infeasible", "failed",          "degenerate",   "diag"}};
  return request;
}

struct CacheReader::Impl {
  h5::InputFile file;
  h5::Survey survey;
  Object root;
  CachesMeta meta;
  std::vector<CacheGroup> groups;

  Impl(h5::InputFile&& from, h5::Survey&& found)
      : file(std::move(from)), survey(std::move(found)), root(h5::open_root(survey, file.path())) {}

  std::string inside(std::size_t group, const CachePlace& at) const {
    return fmt::format("{}/{}", groups[group].name, caches::entry_path(at));
  }
  // Nothing if a step of the path is missing.
  std::optional<Object> find(std::size_t group, const CachePlace& at) const {
    Object here = h5::open_group(root, groups[group].name);
    for (const std::string& step : {std::string("prompts"), at.prompt, std::string("layers"),
                                    std::to_string(at.layer), std::to_string(at.kv_head)}) {
      if (!h5::has_link(here, step)) {
        return std::nullopt;
      }
      here = h5::open_group(here, step);
    }
    return here;
  }
};

std::string caches::entry_path(const CachePlace& place) {
  return fmt::format("prompts/{}/layers/{}/{}", place.prompt, place.layer, place.kv_head);
}

h5::InputFile caches::open(const std::string& path) {
  return {path, "caches as docs/trace_format.md says"};
}

CacheReader::CacheReader(const std::string& path) : CacheReader(caches::open(path)) {}

// The other constructor moves from the file only after the survey.
CacheReader::CacheReader(h5::InputFile&& file)
    : CacheReader(std::move(file), h5::survey(file, caches::request())) {}

CacheReader::CacheReader(h5::InputFile&& file, h5::Survey&& survey)
    : impl_(std::make_unique<Impl>(std::move(file), std::move(survey))) {
  Impl& r = *impl_;
  const Object& root = r.root;
  const std::string format = h5::required_string(root, "format");
  if (format != caches::kFormat) {
    root.where.refuse("format is \"{}\", expected \"{}\"", format, caches::kFormat);
  }
  const Index version = h5::required_int(root, "version");
  if (version != caches::kVersion) {
    root.where.refuse("version is {}, expected {}", version, caches::kVersion);
  }
  CachesMeta& m = r.meta;
  m.trace_sha256 = h5::required_strings(root, "trace_sha256");
  m.protocol = one_of(root, "protocol", "", {"prefill", "stream"});
  m.sink = at_least_0(root, "sink");
  m.recent = at_least_0(root, "recent");
  m.queries = at_least_0(root, "queries");
  m.plan = h5::optional_string(root, "plan").value_or("");
  std::map<std::tuple<std::string, std::string, std::optional<double>, std::uint64_t>, std::string>
      seen;
  for (const std::string& name : h5::link_names(root)) {
    const CacheGroup& group = r.groups.emplace_back(read_group(root, name));
    const auto [first, fresh] =
        seen.emplace(std::tuple{group.algorithm, group.params, group.budget, group.seed}, name);
    if (!fresh) {
      (root.where / name)
          .refuse("has the algorithm, params, budget and seed of {}, expected one group of each",
                  first->second);
    }
  }
  if (r.groups.empty()) {
    root.where.refuse("holds no group, expected one per algorithm and setting");
  }
}

CacheReader::~CacheReader() = default;
CacheReader::CacheReader(CacheReader&&) noexcept = default;
CacheReader& CacheReader::operator=(CacheReader&&) noexcept = default;

const std::string& CacheReader::path() const {
  return impl_->file.path();
}

const CachesMeta& CacheReader::meta() const {
  return impl_->meta;
}

const std::vector<CacheGroup>& CacheReader::groups() const {
  return impl_->groups;
}

bool CacheReader::has(std::size_t group, const CachePlace& place) const {
  return impl_->find(group, place).has_value();
}

std::string CacheReader::where(std::size_t group, const CachePlace& place) const {
  return h5::one_line(fmt::format("{}: /{}", impl_->file.path(), impl_->inside(group, place)));
}

std::optional<HeadCache> CacheReader::read(std::size_t group, const CachePlace& at,
                                           const Shape& shape) const {
  const auto found = impl_->find(group, at);
  if (!found) {
    return std::nullopt;
  }
  const Entry entry{*found, impl_->file};
  HeadCache out;
  out.infeasible = optional_line(entry, "infeasible");
  out.failed = optional_line(entry, "failed");
  out.scoring_queries = optional_count(entry, "scoring_queries");
  if (out.absent()) {
    return out;
  }
  out.k = read_matrix(entry, "k", -shape.largest, shape.d);
  const Index rows = out.k.rows();
  out.v = read_matrix(entry, "v", rows, shape.dv);
  out.log_weight = read_log_weights(entry, "log_weight", rows);
  out.token = read_positions(
      entry, "token", rows, [](std::int64_t) { return -1; }, "a position, or -1 where it was made");
  out.counted = read_positions(
      entry, "counted", -rows, [](std::int64_t last) { return last + 1; }, "ascending positions");
  const bool own_keys = h5::has_link(entry, "k_den");
  if (own_keys || h5::has_link(entry, "log_weight_den")) {
    CacheDenominator& den = out.denominator.emplace();
    if (own_keys) {
      den.k = read_matrix(entry, "k_den", -shape.largest, shape.d);
    }
    den.log_weight = read_log_weights(entry, "log_weight_den", den.k ? den.k->rows() : rows);
  }
  out.aux_bytes = optional_count(entry, "aux_bytes");
  out.payload_bytes = optional_count(entry, "payload_bytes");
  out.quantised = optional_count(entry, "quantised").value_or(0);
  out.transient_bytes = optional_count(entry, "transient_bytes").value_or(0);
  out.compress_ms = optional_time(entry, "compress_ms");
  out.degenerate = optional_line(entry, "degenerate");
  out.diag = optional_line(entry, "diag");
  return out;
}

}  // namespace kvbench
