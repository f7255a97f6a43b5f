#include <algorithm>
#include <cmath>
#include <limits>

#include "gpu/block.cuh"
#include "gpu/products.cuh"
#include "gpu/rows.cuh"

namespace kvbench::gpu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kLanes = static_cast<int>(kDistanceLanes);  // a team: threads that share distances
constexpr int kThreads = 128;
constexpr int kTeams = kThreads / kLanes;

// Returns to each lane of a team the squared distance of the team's x and row(lane). Each lane
// makes a partial sum of all eight distances, so that a team reads 32 bytes at a time. All lanes of
// a warp must call.
template <class Row>
__device__ double team_distance(const float* x, Index d, const Row& row) {
  __shared__ double sums[kTeams][kLanes][kLanes + 1];  // avoids bank conflicts
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  auto& own = sums[threadIdx.x / kLanes];
  const float* rows[kLanes];
  double acc[kLanes] = {};
  for (int r = 0; r < kLanes; ++r) {
    rows[r] = row(r);
  }
  for (Index t = lane; t < d; t += kLanes) {
    const auto a = static_cast<double>(x[t]);
    for (int r = 0; r < kLanes; ++r) {
      acc[r] = add_square(a, rows[r][t], acc[r]);
    }
  }
  for (int r = 0; r < kLanes; ++r) {
    own[lane][r] = acc[r];
  }
  __syncwarp();
  for (int r = 0; r < kLanes; ++r) {
    acc[r] = own[r][lane];
  }
  __syncwarp();
  return sum_of_lanes(acc);
}

struct Centers {
  Index count, first;
  Place* farthest;  // [2, blocks]: a launch reads one half and writes the other
  Index* centers;   // [count + 1] places
  double* radius;   // [count + 1] squared, before each centre
  double* squared;  // [m]
  Index* nearest;   // [m]
};

// Centre `number` is the farthest row of the launch before; rows strictly nearer to it than to
// earlier centres join it. The launch with number = count finds the last radius. If every row lies
// on a centre, later launches pass that on.
__global__ void __launch_bounds__(kThreads) admit(Points p, Centers to, Index number) {
  const Index blocks = gridDim.x;
  const Index place = Index{blockIdx.x} * kThreads + threadIdx.x;
  Place center{kInfinity, to.first};
  if (number > 0) {
    center = {-1.0, p.m};
    for (Index i = threadIdx.x; i < blocks; i += kThreads) {
      center = LargestFirst{}(center, to.farthest[(number + 1) % 2 * blocks + i]);
    }
    center = block_reduce<kThreads>(center, LargestFirst{});
  }
  const bool admits = number < to.count && center.value > 0.0;
  if (place == 0) {
    to.radius[number] = center.value;
    to.centers[number] = center.index;
  }
  Place own = center;
  if (admits) {
    const Index first = place / kLanes * kLanes;
    const double x =
        team_distance(p.row(center.index), p.d, [&](int r) { return p.row(first + r); });
    own = {-1.0, p.m};
    if (place < p.m) {
      own = {number == 0 ? kInfinity : to.squared[place], place};
      if (x < own.value || place == center.index) {
        to.nearest[place] = number;
      }
      if (x < own.value) {
        own.value = to.squared[place] = x;
      }
    }
    own = block_reduce<kThreads>(own, LargestFirst{});
  }
  if (threadIdx.x == 0) {
    to.farthest[number % 2 * blocks + blockIdx.x] = own;
  }
}

constexpr int kBatch = 64;                // rows of a stream at a time
constexpr int kParts = 64;                // parts of the representatives, a block each
constexpr int kWithin = kBatch / kTeams;  // parts of the batch itself
constexpr Index kUnwatched = 64;          // batches between checks for a stop

struct Progress {
  Index clusters;
  Index stopped;  // place of the row that exceeded max_clusters, or -1
};

struct Stream {
  double delta;
  Index max_clusters;
  Progress* progress;
  Index* representatives;  // [max_clusters] places
  Place* nearest;          // [kParts, kBatch] nearest cluster of each row in a part
  double* within;          // [kBatch, kBatch] squared distances within the batch
  Index* cluster;          // [m]
  double* squared;         // [m] to the nearest representative before
};

// Squared distances of eight rows of the batch at `begin` to one part of the representatives, or to
// the batch itself. A team has one column at a time, a lane per row.
__global__ void __launch_bounds__(kThreads) batch_distances(Points p, Stream to, Index begin) {
  __shared__ Place best_of[kTeams][kLanes];
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int team = static_cast<int>(threadIdx.x) / kLanes;
  const Index part = Index{blockIdx.x} % (kParts + kWithin);
  const Index first = Index{blockIdx.x} / (kParts + kWithin) * kLanes;
  const bool within = part >= kParts;
  const Index columns = within ? Index{kBatch} : to.progress->clusters;
  if (to.progress->stopped >= 0) {
    return;
  }
  Place best{kInfinity, -1};
  for (Index tile = (within ? part - kParts : part) * kTeams; tile < columns;
       tile += kParts * kTeams) {
    const Index column = tile + team;
    const Index there = column < columns ? column : columns - 1;
    const float* x = p.row(within ? begin + there : to.representatives[there]);
    const double squared = team_distance(x, p.d, [&](int r) { return p.row(begin + first + r); });
    if (within) {
      to.within[(first + lane) * kBatch + column] = squared;
    } else if (column < columns) {
      best = SmallestFirst{}(best, {squared, column});
    }
  }
  best_of[team][lane] = best;
  __syncthreads();
  if (team == 0 && !within) {
    for (const auto& of : best_of) {
      best = SmallestFirst{}(best, of[lane]);
    }
    to.nearest[part * kBatch + first + lane] = best;
  }
}

// Rows of a batch join or open clusters in order, a thread per row. A thread decides one step
// ahead, so a step has one barrier.
__global__ void __launch_bounds__(kBatch) assign_batch(Points p, Stream to, Index begin) {
  __shared__ double within[kBatch][kBatch];
  __shared__ bool joins[kBatch];
  const int thread = static_cast<int>(threadIdx.x);
  Progress now = *to.progress;
  if (now.stopped >= 0) {
    return;
  }
  Place own{kInfinity, -1};
  static_assert(kParts == kBatch);
  for (int i = 0; i < kParts; ++i) {
    own = SmallestFirst{}(own, to.nearest[i * kBatch + thread]);
    within[i][thread] = to.within[i * kBatch + thread];
  }
  joins[thread] = own.index >= 0 && std::sqrt(own.value) <= to.delta;
  const Index size = p.m - begin < kBatch ? p.m - begin : Index{kBatch};
  for (int i = 0; i < size; ++i) {
    __syncthreads();
    if (joins[i]) {
      continue;
    }
    if (now.clusters == to.max_clusters) {
      now.stopped = begin + i;
      break;
    }
    if (thread == i) {
      own.index = now.clusters;
      to.representatives[now.clusters] = begin + i;
    } else if (thread > i && within[i][thread] < own.value) {
      own = {within[i][thread], now.clusters};
      joins[thread] = std::sqrt(own.value) <= to.delta;
    }
    ++now.clusters;
  }
  if (thread < size) {
    to.cluster[begin + thread] = own.index;
    to.squared[begin + thread] = own.value;
  }
  if (thread == 0) {
    *to.progress = now;
  }
}

constexpr int kMeanThreads = 32;
static_assert(kTileColumns<double> == kTile);
constexpr Index kChunk = 512;  // rows per partial sum of the covariance

__global__ void row_norms(Points p, double* out) {
  const Index i = Index{blockIdx.x} * kThreads + threadIdx.x;
  if (i < p.m) {
    const float* row = p.row(i);
    double sum = 0.0;
    for (Index t = 0; t < p.d; ++t) {
      const auto x = static_cast<double>(row[t]);
      sum += x * x;
    }
    out[i] = std::sqrt(sum);
  }
}

// A thread per channel: the CPU's order of rows.
__global__ void column_means(Points p, double* out) {
  const Index t = Index{blockIdx.x} * kMeanThreads + threadIdx.x;
  if (t < p.d) {
    double sum = 0.0;
    for (Index i = 0; i < p.m; ++i) {
      sum += static_cast<double>(p.row(i)[t]);
    }
    out[t] = sum / static_cast<double>(p.m);
  }
}

// out[c, t, u] = sum over chunk first + c of (x_t - mean_t)(x_u - mean_u), u <= t.
__global__ void __launch_bounds__(kTileThreads)
    chunk_covariance(Points p, const double* mean, Index first, double* out) {
  const Index tiles = ceil_div(p.d, kTile);
  const Index chunk = Index{blockIdx.x} / tiles / tiles;
  const Index top = Index{blockIdx.x} / tiles % tiles * kTile;
  const Index side = Index{blockIdx.x} % tiles * kTile;
  if (side > top) {
    return;
  }
  const Index begin = (first + chunk) * kChunk;
  const Index count = p.m - begin < kChunk ? p.m - begin : kChunk;
  const auto row = [&](Index t) {
    return [&p, begin, t](Index i) { return p.row(begin + i) + t; };
  };
  const auto centred = [&](Index t) {
    return [mean, t](float x, int at) { return static_cast<double>(x) - mean[t + at]; };
  };
  OwnSums<double> acc;
  tile_products<double>(
      count, across_sum<double, LeftSide>(count, p.d - top, row(top), centred(top)),
      across_sum<double, RightSide>(count, p.d - side, row(side), centred(side)), acc);
  KVB_UNROLL
  for (int r = 0; r < kTileOwn; ++r) {
    KVB_UNROLL
    for (int c = 0; c < kOwnColumns<double>; ++c) {
      const Index t = top + tile_row(r);
      const Index u = side + tile_column(c);
      if (u <= t && t < p.d) {
        out[(chunk * p.d + t) * p.d + u] = acc[r][c];
      }
    }
  }
}

__global__ void add_chunks(const double* sums, Index chunks, Index d, double* total) {
  const Index at = Index{blockIdx.x} * kThreads + threadIdx.x;
  if (at < d * d && at % d <= at / d) {
    for (Index c = 0; c < chunks; ++c) {
      total[at] += sums[c * d * d + at];
    }
  }
}

}  // namespace

DeviceRowSet::DeviceRowSet(const Device& device, const float* resident, Index cols,
                           std::span<const Index> rows)
    : device_(device),
      numbers_(device_, rows),
      points_{resident, numbers_.data(), static_cast<Index>(rows.size()), cols} {
  device_.wait();  // other threads' streams read the uploads
}

DeviceRowSet::DeviceRowSet(const Device& device, MatrixView rows)
    : device_(device),
      matrix_(device_, std::span(rows.data, static_cast<std::size_t>(rows.rows * rows.cols))),
      points_{matrix_.data(), nullptr, rows.rows, rows.cols} {
  device_.wait();
}

KCenter DeviceRowSet::k_center(Index k, Index first) const {
  const auto m = static_cast<std::size_t>(points_.m);
  const Index count = std::clamp<Index>(k, 0, points_.m);
  KCenter out;
  out.nearest.assign(m, 0);
  out.squared.assign(m, kInfinity);
  if (count == 0) {
    return out;
  }
  const Index blocks = ceil_div(points_.m, kThreads);
  const Array<Place> farthest(device_, 2 * blocks);
  const Array<Index> centers(device_, count + 1), nearest(device_, points_.m);
  const Array<double> radius(device_, count + 1), squared(device_, points_.m);
  const Centers to{count,         first,          farthest.data(), centers.data(),
                   radius.data(), squared.data(), nearest.data()};
  for (Index number = 0; number <= count; ++number) {
    device_.launch(admit, blocks, kThreads, points_, to, number);
  }
  out.centers.resize(count);
  out.radius.resize(out.centers.size() + 1);
  centers.get(out.centers);
  radius.get(out.radius);
  squared.get(out.squared);
  nearest.get(out.nearest);
  out.radius.erase(out.radius.begin());
  // No centres follow a radius of 0.
  const auto zero = std::find(out.radius.begin(), out.radius.end(), 0.0);
  if (zero != out.radius.end()) {
    out.radius.erase(zero + 1, out.radius.end());
    out.centers.resize(out.radius.size());
  }
  for (double& x : out.radius) {
    x = std::sqrt(x);
  }
  admit_lowest(out, static_cast<std::size_t>(count));
  return out;
}

Clusters DeviceRowSet::online_clusters(double delta, Index max_clusters) const {
  const Index m = points_.m;
  if (m == 0) {
    return {};
  }
  const Index max = std::clamp<Index>(max_clusters, 0, m);
  Progress now{0, -1};
  const Array<Progress> progress(device_, std::span<const Progress>(&now, 1));
  const Array<Index> representatives(device_, max), cluster(device_, m);
  const Array<Place> nearest(device_, Index{kParts} * kBatch);
  const Array<double> within(device_, Index{kBatch} * kBatch), squared(device_, m);
  const Stream to{delta,          max,           progress.data(), representatives.data(),
                  nearest.data(), within.data(), cluster.data(),  squared.data()};
  for (Index batch = 0; batch * kBatch < m && now.stopped < 0; ++batch) {
    device_.launch(batch_distances, (kParts + kWithin) * (kBatch / kLanes), kThreads, points_, to,
                   batch * kBatch);
    device_.launch(assign_batch, 1, kBatch, points_, to, batch * kBatch);
    if ((batch + 1) % kUnwatched == 0) {
      progress.get(std::span(&now, 1));
    }
  }
  progress.get(std::span(&now, 1));
  const auto seen = static_cast<std::size_t>(now.stopped < 0 ? m : now.stopped + 1);
  Clusters out;
  std::vector<double> distance(seen);
  out.cluster.resize(seen);
  cluster.get(out.cluster);
  squared.get(distance);
  for (std::size_t i = 0; i < seen; ++i) {
    const auto place = static_cast<Index>(i);
    distance[i] = std::sqrt(distance[i]);
    if (place == now.stopped) {
      out.smallest_open = std::min(out.smallest_open, distance[i]);
    } else if (out.cluster[i] == static_cast<Index>(out.representatives.size())) {
      out.representatives.push_back(place);  // clusters are numbered as they open
      out.smallest_open = std::min(out.smallest_open, distance[i]);
    } else {
      out.largest_join = std::max(out.largest_join, distance[i]);
    }
  }
  out.complete = now.stopped < 0;
  out.cluster.resize(out.complete ? seen : seen - 1);
  return out;
}

std::vector<double> DeviceRowSet::norms() const {
  std::vector<double> out(points_.m);
  const Array<double> norms(device_, points_.m);
  device_.launch(row_norms, ceil_div(points_.m, kThreads), kThreads, points_, norms.data());
  norms.get(out);
  return out;
}

RowMoments DeviceRowSet::moments() const {
  const Index d = points_.d;
  const Index chunks = ceil_div(points_.m, kChunk);
  const auto numbers = static_cast<Index>(device_.scratch_bytes() / sizeof(double));
  const Index at_once = std::clamp<Index>(numbers / (d * d), 1, chunks);
  const Index tiles = ceil_div(d, kTile);
  const Array<double> mean(device_, d), sums(device_, at_once * d * d);
  Array<double> total(device_, d * d);
  total.set_zero();
  device_.launch(column_means, ceil_div(d, kMeanThreads), kMeanThreads, points_, mean.data());
  for (Index first = 0; first < chunks; first += at_once) {
    const Index count = std::min(at_once, chunks - first);
    device_.launch(chunk_covariance, count * tiles * tiles, kTileThreads, points_, mean.data(),
                   first, sums.data());
    device_.launch(add_chunks, ceil_div(d * d, kThreads), kThreads, sums.data(), count, d,
                   total.data());
  }
  RowMoments out{std::vector<double>(d), std::vector<double>(d * d)};
  mean.get(out.mean);
  total.get(out.covariance);
  for (double& x : out.covariance) {
    x /= static_cast<double>(points_.m);
  }
  return out;
}

}  // namespace kvbench::gpu
