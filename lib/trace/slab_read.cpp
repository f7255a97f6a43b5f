#include "trace/slab_read.hpp"

#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <new>
#include <stdexcept>
#include <string>

namespace kvbench::h5 {

namespace {

using Box = std::array<Index, 3>;

constexpr std::size_t kBatchPieces = 4096;  // tiny chunks cost memory too
// All threads' chunks together, stored and decoded.
constexpr std::uint64_t kScratchBytes = std::uint64_t{256} << 20;
// A thread frees larger buffers after use.
constexpr std::size_t kKeptScratch = std::size_t{4} << 20;
// Bytes per thread below which waking one costs more than it saves: of filtered data, and of plain
// data, which one thread copies at half the speed of memory.
constexpr std::uint64_t kThreadBytes = std::uint64_t{64} << 10;
constexpr std::uint64_t kPlainThreadBytes = std::uint64_t{16} << 20;
// Contiguous data are read in pieces of this many bytes.
constexpr Index kPieceBytes = Index{1} << 20;

// The part of a slab that lies in one chunk, or a part of a dataset without chunks.
struct Piece {
  const Slab* slab;
  Box start;  // of the part, in the dataset
  Box count;
  Box corner;  // of the chunk, or of the dataset
  Box dims;
  Chunk chunk{};
  bool filtered = false;
  std::string fault = {};
  bool out_of_memory = false;

  std::size_t bytes(const Box& box) const {
    return static_cast<std::size_t>(box[0] * box[1] * box[2]) * slab->data->element.bytes;
  }
};

Box boxed(const std::vector<std::uint64_t>& sizes) {
  Box out{1, 1, 1};
  std::copy(sizes.rbegin(), sizes.rend(), out.rbegin());
  return out;
}

// Visits the runs that a piece shares with its slab: visit(element in the chunk, element in the
// slab's output, count). Whole rows that are adjacent in both are one run.
template <typename Visit>
void for_each_run(const Piece& p, Visit visit) {
  const Slab& s = *p.slab;
  const bool whole = p.count[2] == p.dims[2] && p.count[2] == s.count[2];
  for (Index h = p.start[0]; h < p.start[0] + p.count[0]; ++h) {
    for (Index r = p.start[1]; r < p.start[1] + p.count[1]; ++r) {
      const Index from =
          ((h - p.corner[0]) * p.dims[1] + r - p.corner[1]) * p.dims[2] + p.start[2] - p.corner[2];
      const Index to =
          ((h - s.start[0]) * s.count[1] + r - s.start[1]) * s.count[2] + p.start[2] - s.start[2];
      visit(from, to, whole ? p.count[1] * p.count[2] : p.count[2]);
      if (whole) {
        break;
      }
    }
  }
}

void read(const InputFile& file, std::uint64_t address, std::span<std::uint8_t> to) {
  if (const std::string fault = file.read(address, to); !fault.empty()) {
    throw std::runtime_error(fault);
  }
}

// Sets p.fault instead of throwing: no exception may leave a parallel region.
void decode(const InputFile& file, Piece& p, Scratch& scratch) try {
  const Slab& s = *p.slab;
  const Dataset& d = *s.data;
  const std::size_t width = d.element.bytes;
  std::span<std::uint8_t> chunk;
  if (p.filtered) {
    read(file, p.chunk.address, scratch.reserve(p.chunk.bytes));
    chunk = undo_filters(d, p.chunk.mask, p.chunk.bytes, p.bytes(p.dims), scratch);
  } else if (d.layout == Dataset::Layout::chunked && p.chunk.bytes != p.bytes(p.dims)) {
    throw std::runtime_error(
        fmt::format("holds {} bytes, expected {}", p.chunk.bytes, p.bytes(p.dims)));
  }
  const std::uint64_t address = d.layout == Dataset::Layout::chunked ? p.chunk.address : d.address;
  for_each_run(p, [&](Index from, Index to, Index count) {
    const std::size_t first = static_cast<std::size_t>(from) * width;
    const std::size_t size = static_cast<std::size_t>(count) * width;
    const std::span<std::uint8_t> run =
        p.filtered ? chunk.subspan(first, size) : scratch.reserve(size);
    if (d.layout == Dataset::Layout::compact) {
      std::copy_n(&d.compact[first], size, run.begin());
    } else if (!p.filtered) {
      read(file, address + first, run);
    }
    if (d.element.big_endian) {
      swap_bytes(run, width);
    }
    s.convert(run.data(), count, s.out + static_cast<std::size_t>(to) * s.out_width);
  });
} catch (const std::bad_alloc& e) {
  p.fault = e.what();
  p.out_of_memory = true;
} catch (const std::exception& e) {
  p.fault = e.what();
}

[[noreturn]] void refuse(const Piece& p) {
  if (p.out_of_memory) {
    throw std::bad_alloc();
  }
  const Place& where = *p.slab->where;
  if (p.slab->data->layout == Dataset::Layout::chunked) {
    const std::size_t rank = p.slab->data->sizes.size();
    where.refuse("chunk at [{}]: {}", fmt::join(std::span(p.corner).subspan(3 - rank, rank), ", "),
                 p.fault);
  }
  where.refuse("values cannot be read: {}", p.fault);
}

void decode_batch(const InputFile& file, std::vector<Piece>& batch) {
  std::uint64_t largest = 1;
  std::uint64_t plain = 0;
  std::uint64_t filtered = 0;
  for (const Piece& p : batch) {
    const std::uint64_t bytes = p.bytes(p.filtered ? p.dims : p.count);
    largest = std::max(largest, bytes + p.chunk.bytes);
    (p.filtered ? filtered : plain) += bytes;
  }
  const auto useful =
      std::min<std::uint64_t>({1 + filtered / kThreadBytes + plain / kPlainThreadBytes,
                               kScratchBytes / largest, batch.size()});
  const int threads = std::clamp(static_cast<int>(useful), 1, omp_get_max_threads());
#pragma omp parallel num_threads(threads)
  {
    thread_local Scratch scratch;
#pragma omp for schedule(dynamic)
    for (std::size_t i = 0; i < batch.size(); ++i) {
      decode(file, batch[i], scratch);
    }
    if (scratch.stored.size() + scratch.other.size() > kKeptScratch) {
      scratch = {};
    }
  }
  const auto bad = std::ranges::find_if(batch, [](const Piece& p) { return !p.fault.empty(); });
  if (bad != batch.end()) {
    refuse(*bad);
  }
  batch.clear();
}

// Calls add(piece) for each piece of a slab, in the order of their data.
template <class Add>
void for_each_piece(const Slab& s, const Add& add) {
  const Dataset& d = *s.data;
  const bool chunked = d.layout == Dataset::Layout::chunked;
  const Box sizes = boxed(d.sizes);
  const Index row_bytes = std::max<Index>(s.count[2] * static_cast<Index>(s.out_width), 1);
  const Box step =
      chunked ? boxed(d.chunk) : Box{1, std::max<Index>(kPieceBytes / row_bytes, 1), sizes[2]};
  Box grid{};
  Box first{};
  Box end{};
  for (std::size_t i = 0; i < 3; ++i) {
    grid[i] = (sizes[i] - 1) / step[i] + 1;
    first[i] = s.start[i] / step[i];
    end[i] = (s.start[i] + s.count[i] - 1) / step[i] + 1;
  }
  for (Index a = first[0]; a < end[0]; ++a) {
    for (Index b = first[1]; b < end[1]; ++b) {
      for (Index c = first[2]; c < end[2]; ++c) {
        const Box corner{a * step[0], b * step[1], c * step[2]};
        Piece p{&s, {}, {}, chunked ? corner : Box{}, chunked ? step : sizes};
        bool at_edge = false;
        for (std::size_t i = 0; i < 3; ++i) {
          p.start[i] = std::max(corner[i], s.start[i]);
          p.count[i] = std::min(corner[i] + step[i], s.start[i] + s.count[i]) - p.start[i];
          at_edge |= corner[i] + step[i] > sizes[i];
        }
        if (chunked) {
          p.chunk = d.chunks[static_cast<std::size_t>((a * grid[1] + b) * grid[2] + c)];
          p.filtered = !d.filters.empty() && !(at_edge && d.plain_edges);
        }
        add(std::move(p));
      }
    }
  }
}

}  // namespace

Slab slab(const Tensor& t, const std::vector<Index>& start, const std::vector<Index>& count,
          float* out) {
  Slab s{t.data.get(),
         &t.where,
         {},
         {1, 1, 1},
         real_converter(t.data->element, t.dtype),
         reinterpret_cast<std::uint8_t*>(out),
         sizeof *out};
  std::ranges::copy(start, s.start.end() - static_cast<std::ptrdiff_t>(start.size()));
  std::ranges::copy(count, s.count.end() - static_cast<std::ptrdiff_t>(count.size()));
  return s;
}

Slab whole_integers(const Tensor& t, std::int64_t* out) {
  return {t.data.get(),
          &t.where,
          {},
          boxed(t.data->sizes),
          integer_converter(t.data->element),
          reinterpret_cast<std::uint8_t*>(out),
          sizeof *out};
}

void read_slabs(const InputFile& file, std::span<const Slab> slabs) {
  std::vector<Piece> batch;
  for (const Slab& s : slabs) {
    for_each_piece(s, [&](Piece&& p) {
      batch.push_back(std::move(p));
      if (batch.size() >= kBatchPieces) {
        decode_batch(file, batch);
      }
    });
  }
  decode_batch(file, batch);
}

}  // namespace kvbench::h5
