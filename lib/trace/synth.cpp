#include "trace/synth.hpp"

#include <fmt/format.h>

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <numeric>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/rng.hpp"
#include "trace/writer.hpp"

namespace kvbench {

namespace {

using Vector = Eigen::ArrayXd;

// Planted directions other than positions: offset, sink, heavy, needle.
constexpr Index kSingleDirections = 4;
// Pairs of directions that carry positions; each halves the noise of the fall-off's square.
constexpr Index kMaxPositionPairs = 12;
// Share of a key's norm in each plant. The query carries the rest of the strength.
constexpr double kPlantNorm = 0.5;

// Box-Muller on top of a Philox stream.
class Normal {
 public:
  explicit Normal(RngStream stream) : stream_(stream) {}

  double next() {
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    const double radius = std::sqrt(-2.0 * std::log(1.0 - stream_.next_uniform()));
    const double angle = 2.0 * std::numbers::pi * stream_.next_uniform();
    spare_ = radius * std::sin(angle);
    has_spare_ = true;
    return radius * std::cos(angle);
  }

  Vector vector(Index size) {
    Vector v(size);
    std::generate(v.begin(), v.end(), [this] { return next(); });
    return v;
  }

 private:
  RngStream stream_;
  double spare_ = 0;
  bool has_spare_ = false;
};

// Channels are added in their order.
double dot(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

void normalise(Vector& v) {
  const double norm = std::sqrt(dot(v, v));
  if (norm > 0) {
    v /= norm;
  }
}

void remove_components(Vector& v, const std::vector<Vector>& directions) {
  for (const Vector& u : directions) {
    v += -dot(v, u) * u;
  }
}

void store(const Vector& v, float* out) {
  Eigen::Map<Eigen::ArrayXf>(out, v.size()) = v.cast<float>();
}

Index position_pairs(Index d) {
  return std::min(kMaxPositionPairs, (d - kSingleDirections) / 4);
}

// One KV head without its noise.
struct Plan {
  std::vector<Vector> planted;      // orthonormal: offset, sink, heavy, needle, then position pairs
  std::vector<double> frequencies;  // radians per token, one per pair
  std::vector<Vector> centres;      // unit vectors without planted components
  std::vector<Vector> value_centres;
  std::vector<Index> cluster;  // per token
  std::vector<bool> heavy;     // per token
  Index needle = -1;

  const Vector& offset() const { return planted[0]; }
  const Vector& sink() const { return planted[1]; }
  const Vector& heavy_direction() const { return planted[2]; }
  const Vector& needle_direction() const { return planted[3]; }
};

std::vector<Vector> unit_vectors(Normal& normal, Index count, Index width,
                                 const std::vector<Vector>& without) {
  std::vector<Vector> result;
  for (Index i = 0; i < count; ++i) {
    Vector v = normal.vector(width);
    remove_components(v, without);
    normalise(v);
    result.push_back(std::move(v));
  }
  return result;
}

Plan make_plan(const SynthOptions& o, const Rng& rng) {
  Plan plan;
  const Index pairs = position_pairs(o.d);
  Normal directions(rng.stream("directions"));
  for (Index i = 0; i < kSingleDirections + 2 * pairs; ++i) {
    Vector v = directions.vector(o.d);
    remove_components(v, plan.planted);
    remove_components(v, plan.planted);  // twice: one pass leaves rounding behind
    normalise(v);
    plan.planted.push_back(std::move(v));
  }
  // Random Fourier features: cos of normal frequencies averages to a Gaussian in distance.
  Normal frequencies(rng.stream("frequencies"));
  for (Index i = 0; i < pairs; ++i) {
    plan.frequencies.push_back(frequencies.next() / o.recency_window);
  }
  Normal centres(rng.stream("centres"));
  plan.centres = unit_vectors(centres, o.clusters, o.d, plan.planted);
  Normal value_centres(rng.stream("value centres"));
  plan.value_centres = unit_vectors(value_centres, o.clusters, o.dv, {});
  RngStream topics = rng.stream("topics");
  RngStream heavy = rng.stream("heavy");
  Index cluster = 0;
  for (Index i = 0; i < o.n; ++i) {
    // Two draws per token whatever happens, so that run_length alone changes where runs end.
    const bool change = topics.next_uniform() * o.run_length < 1.0 || i == 0;
    const double pick = topics.next_uniform();
    if (change) {
      cluster =
          std::min(o.clusters - 1, static_cast<Index>(pick * static_cast<double>(o.clusters)));
    }
    plan.cluster.push_back(cluster);
    const bool hit = heavy.next_uniform() < o.heavy_fraction;
    plan.heavy.push_back(hit && o.heavy_strength > 0 && i >= o.sinks);
  }
  if (o.needle_strength > 0) {
    plan.needle = static_cast<Index>(o.needle_position * static_cast<double>(o.n));
  }
  return plan;
}

// Adds `amount` times the unit vector of a position.
void add_position(const SynthOptions& o, const Plan& plan, Index token, double amount, Vector& to) {
  const Index pairs = position_pairs(o.d);
  const double share = amount / std::sqrt(static_cast<double>(pairs));
  for (Index p = 0; p < pairs; ++p) {
    const auto i = static_cast<std::size_t>(p);
    const double angle = plan.frequencies[i] * static_cast<double>(token);
    const auto at = static_cast<std::size_t>(kSingleDirections) + 2 * i;
    to += share * std::cos(angle) * plan.planted[at];
    to += share * std::sin(angle) * plan.planted[at + 1];
  }
}

Matrix make_keys(const SynthOptions& o, const Plan& plan, const Rng& rng) {
  Matrix k(o.n, o.d);
  Normal noise(rng.stream("key noise"));
  const double spread = o.cluster_radius / std::sqrt(static_cast<double>(o.d));
  const double plant = kPlantNorm * o.key_norm;
  for (Index i = 0; i < o.n; ++i) {
    const auto t = static_cast<std::size_t>(i);
    Vector key = noise.vector(o.d);
    if (i < o.sinks && o.sink_strength > 0) {
      key.setZero();
      key += o.sink_norm * o.key_norm * plan.sink();
    } else {
      remove_components(key, plan.planted);
      key *= spread * o.key_norm;
      key += o.key_norm * plan.centres[plan.cluster[t]];
      if (o.recency > 0) {
        add_position(o, plan, i, plant, key);
      }
    }
    if (plan.heavy[t]) {
      key += plant * plan.heavy_direction();
    }
    if (i == plan.needle) {
      key += plant * plan.needle_direction();
    }
    key += o.key_offset * plan.offset();
    store(key, k.row(i));
  }
  return k;
}

Matrix make_values(const SynthOptions& o, const Plan& plan, const Rng& rng) {
  Matrix v(o.n, o.dv);
  Normal noise(rng.stream("value noise"));
  RngStream norms = rng.stream("value norms");
  const double spread = o.cluster_radius / std::sqrt(static_cast<double>(o.dv));
  for (Index i = 0; i < o.n; ++i) {
    Vector value = noise.vector(o.dv);
    value *= spread;
    const Index cluster = plan.cluster[i];
    value += plan.value_centres[cluster];
    normalise(value);
    const double decades = (norms.next_uniform() - 0.5) * o.value_decades;
    double norm = o.value_norm * std::pow(10.0, decades);
    if (i < o.sinks) {
      norm *= o.sink_value;
    }
    value *= norm;
    store(value, v.row(i));
  }
  return v;
}

Matrix make_queries(const SynthOptions& o, const Plan& plan, const Rng& rng, Index nq, double scale,
                    Index member) {
  Matrix q(nq, o.d);
  Normal noise(rng.stream(fmt::format("query noise {}", member)));
  // A query's component along a plant times the key's gives strength / scale.
  const double per_nat = 1.0 / (scale * o.key_norm);
  const double plant = per_nat / kPlantNorm;
  for (Index r = 0; r < nq; ++r) {
    const Index token = o.n - nq + r;
    Vector query = noise.vector(o.d);
    remove_components(query, plan.planted);
    // <centre, query> is a standard normal, so the logit's deviation is query_noise.
    query *= o.query_noise * per_nat;
    const Index cluster = plan.cluster[token];
    query += o.topic_strength * per_nat * plan.centres[cluster];
    if (o.recency > 0) {
      add_position(o, plan, token, o.recency * plant, query);
    }
    if (o.sinks > 0) {
      query += o.sink_strength * per_nat / o.sink_norm * plan.sink();
    }
    if (o.heavy_fraction > 0) {
      query += o.heavy_strength * plant * plan.heavy_direction();
    }
    if (plan.needle >= 0 && o.n - token <= o.needle_queries) {
      query += o.needle_strength * plant * plan.needle_direction();
    }
    store(query, q.row(r));
  }
  return q;
}

template <class T>
void check_number(const char* name, T got, SynthRange r) {
  const auto x = static_cast<double>(got);
  if (!(r.low <= x && x <= r.high) || (r.open_low && x == r.low) || (r.open_high && x == r.high)) {
    throw InputError(fmt::format("synth: {} must be in {}{}, {}{}, got {}", name,
                                 r.open_low ? '(' : '[', r.low, r.high, r.open_high ? ')' : ']',
                                 got));
  }
}

}  // namespace

void check(const SynthOptions& o) {
  const auto check_one = [](const char* name, const auto& got, SynthRange r, const char*) {
    if constexpr (requires { got.has_value(); }) {
      if (got) {
        check_number(name, *got, r);
      }
    } else {
      check_number(name, got, r);
    }
  };
  each_shape(o, check_one);
  if (o.q_heads % o.kv_heads != 0) {
    throw InputError(fmt::format("synth: q_heads must be a multiple of kv_heads = {}, got {}",
                                 o.kv_heads, o.q_heads));
  }
  each_plant(o, check_one);
}

void synth(const SynthOptions& o, const std::string& path) {
  check(o);
  const Index nq = o.nq == 0 ? o.n : o.nq;
  const double scale = o.scale ? *o.scale : 1.0 / std::sqrt(static_cast<double>(o.d));
  const Index group = o.q_heads / o.kv_heads;
  TraceHeader header;
  header.model = kSynthModel;
  header.source = fmt::format("planted structure, seed {}", o.seed);
  header.created = o.created;
  header.rope = "none";
  header.dtype = o.dtype;
  header.scale = scale;
  header.gzip_level = o.gzip_level;
  TraceWriter writer(path, header);
  for (Index p = 0; p < o.prompts; ++p) {
    const std::string id = fmt::format("p{}", p);
    writer.begin_prompt(id, o.n);
    for (Index l = 0; l < o.layers; ++l) {
      writer.begin_layer({l, o.q_heads, o.kv_heads, nq, o.d, o.dv, {}, {}, {}});
      for (Index h = 0; h < o.kv_heads; ++h) {
        const Rng rng(o.seed, HeadId{id, l, h}, "synth");
        const Plan plan = make_plan(o, rng);
        writer.write_k(h, make_keys(o, plan, rng));
        writer.write_v(h, make_values(o, plan, rng));
        for (Index i = 0; i < group; ++i) {
          writer.write_q(h * group + i, make_queries(o, plan, rng, nq, scale, i));
        }
      }
    }
  }
  writer.close();
}

}  // namespace kvbench
