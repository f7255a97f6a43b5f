// Why not H5Dread: it trusts the file, its half-to-float conversion runs at tens of MB/s, and its
// filters run in one thread. Raw bytes, libdeflate and F16C run at memory speed.
#include "trace/slab_read.hpp"

#include <omp.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <new>
#include <string>
#include <vector>

#include "trace/element_convert.hpp"
#include "trace/filters.hpp"

namespace kvbench::h5 {

namespace {

using Box = std::array<Index, 3>;

constexpr std::size_t kBatchPieces = 4096;  // tiny chunks cost memory too
// All threads' chunks together, as they are stored and plain.
constexpr std::uint64_t kScratchBytes = std::uint64_t{256} << 20;
// A thread's buffers are freed after use above this size.
constexpr std::size_t kKeptScratch = std::size_t{4} << 20;
// Less data than this per thread is not worth waking one: of data behind filters, and of plain
// ones, which one thread copies at half the speed of memory.
constexpr std::uint64_t kThreadBytes = std::uint64_t{64} << 10;
constexpr std::uint64_t kPlainThreadBytes = std::uint64_t{16} << 20;
// Contiguous data are read in pieces of this many bytes.
constexpr Index kPieceBytes = Index{1} << 20;

// The part of a slab that lies in one chunk, or a part of contiguous data.
struct Piece {
  const Slab* slab;
  Box start;  // of the part, in the dataset
  Box count;
  Box corner;  // of the chunk
  Box dims;
  Chunk chunk{};  // where it lies; contiguous data: none
  std::string fault = {};
  bool no_memory = false;  // the fault is the machine's, not the file's
};

Box boxed(const std::vector<std::uint64_t>& sizes, Index missing) {
  Box out{missing, missing, missing};
  std::transform(sizes.rbegin(), sizes.rend(), out.rbegin(),
                 [](std::uint64_t size) { return static_cast<Index>(size); });
  return out;
}

Index elements(const Box& dims) {
  return dims[0] * dims[1] * dims[2];
}

// ----------------------------------------------------------------------------------------- pieces

// Visits the runs that a piece shares with its slab: visit(element in the chunk, element in the
// slab's output, count). Whole rows that lie together in both are one run.
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

// Converts `count` elements to the slab's output at `to`. They are the ones behind `first` of a
// chunk, which lies in memory as planes or as it is.
void emit(const Piece& p, const std::uint8_t* plain, bool shuffled, Index first, Index to,
          Index count) {
  const Slab& s = *p.slab;
  const auto width = static_cast<Index>(s.data->element.bytes);
  ElementBlock block;
  for (Index done = 0; done < count; done += kElementBlock) {
    const Index part = std::min(kElementBlock, count - done);
    const std::uint8_t* from =
        shuffled ? joined(plain, width, elements(p.dims), first + done, part, block)
                 : plain + (first + done) * width;
    if (s.data->element.big_endian) {
      from = turned(from, width, part, block);
    }
    s.convert(from, part, s.out + static_cast<std::size_t>(to + done) * s.out_width);
  }
}

// Elements without filters, from `address` on: only the runs are read.
void read_plain(const InputFile& file, Piece& p, std::uint64_t address, Scratch& scratch) {
  const auto width = static_cast<Index>(p.slab->data->element.bytes);
  for_each_run(p, [&](Index from, Index to, Index count) {
    const auto bytes = static_cast<std::size_t>(count * width);
    grow(scratch.stored, bytes);
    if (p.fault.empty()) {
      p.fault = file.read(address + static_cast<std::uint64_t>(from * width),
                          {scratch.stored.data(), bytes});
    }
    emit(p, scratch.stored.data(), false, 0, to, count);
  });
}

// Filters that this chunk went through.
bool is_filtered(const Piece& p) {
  const Dataset& d = *p.slab->data;
  const Box sizes = boxed(d.sizes, 1);
  bool edge = false;
  for (std::size_t i = 0; i < 3; ++i) {
    edge |= p.corner[i] + p.dims[i] > sizes[i];
  }
  return !d.filters.empty() && !(edge && d.plain_edges);
}

// Sets p.fault instead of throwing: no exception may leave a parallel region.
void decode(const InputFile& file, Piece& p, Scratch& scratch) try {
  const Dataset& d = *p.slab->data;
  if (d.layout == Dataset::Layout::compact) {
    for_each_run(p, [&](Index from, Index to, Index count) {
      emit(p, d.compact.data(), false, from, to, count);
    });
    return;
  }
  if (d.layout == Dataset::Layout::contiguous) {
    read_plain(file, p, d.address, scratch);
    return;
  }
  const auto bytes = static_cast<std::size_t>(elements(p.dims)) * d.element.bytes;
  if (!is_filtered(p)) {
    if (p.chunk.bytes != bytes) {
      p.fault = fmt::format("holds {} bytes, expected {}", p.chunk.bytes, bytes);
      return;
    }
    read_plain(file, p, p.chunk.address, scratch);
    return;
  }
  grow(scratch.stored, p.chunk.bytes);
  p.fault = file.read(p.chunk.address, {scratch.stored.data(), p.chunk.bytes});
  if (!p.fault.empty()) {
    return;
  }
  const Plain plain = undo_filters(d, p.chunk.mask, p.chunk.bytes, bytes, scratch);
  p.fault = plain.fault;
  if (p.fault.empty()) {
    for_each_run(p, [&](Index from, Index to, Index count) {
      emit(p, plain.bytes.data(), plain.shuffled, from, to, count);
    });
  }
} catch (const std::bad_alloc& e) {
  p.fault = e.what();
  p.no_memory = true;
} catch (const std::exception& e) {
  p.fault = e.what();
}

[[noreturn]] void refuse(const Piece& p) {
  if (p.no_memory) {
    throw std::bad_alloc();  // not the file's fault
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
    const bool whole = p.slab->data->layout == Dataset::Layout::chunked && is_filtered(p);
    const auto bytes = static_cast<std::uint64_t>(elements(whole ? p.dims : p.count)) *
                       p.slab->data->element.bytes;
    largest = std::max(largest, bytes + p.chunk.bytes);
    (whole ? filtered : plain) += bytes;
  }
  const auto useful =
      std::min<std::uint64_t>({1 + filtered / kThreadBytes + plain / kPlainThreadBytes,
                               kScratchBytes / largest, batch.size()});
  const int threads = std::clamp(static_cast<int>(useful), 1, omp_get_max_threads());
#pragma omp parallel num_threads(threads)
  {
    // Kept by each thread unless it is large.
    thread_local Scratch scratch;
#pragma omp for schedule(dynamic)
    for (std::size_t i = 0; i < batch.size(); ++i) {
      decode(file, batch[i], scratch);
    }
    if (scratch.stored.size() + scratch.plain.size() > kKeptScratch) {
      scratch = {};
    }
  }
  for (const Piece& p : batch) {
    if (!p.fault.empty()) {
      refuse(p);
    }
  }
  batch.clear();
}

// Hands `take` the pieces of a slab, in the order of their data.
template <class Take>
void for_each_piece(const Slab& s, const Take& take) {
  const Dataset& d = *s.data;
  const Box sizes = boxed(d.sizes, 1);
  if (d.layout != Dataset::Layout::chunked) {
    const Index row_bytes = std::max<Index>(s.count[2] * static_cast<Index>(s.out_width), 1);
    const Index rows = std::max<Index>(kPieceBytes / row_bytes, 1);
    for (Index h = 0; h < s.count[0]; ++h) {
      for (Index r = 0; r < s.count[1]; r += rows) {
        take(Piece{&s,
                   {s.start[0] + h, s.start[1] + r, s.start[2]},
                   {1, std::min(rows, s.count[1] - r), s.count[2]},
                   {0, 0, 0},
                   sizes});
      }
    }
    return;
  }
  const Box dims = boxed(d.chunk, 1);
  Box grid{};
  Box first{};
  Box end{};
  for (std::size_t i = 0; i < 3; ++i) {
    grid[i] = (sizes[i] - 1) / dims[i] + 1;
    first[i] = s.start[i] / dims[i];
    end[i] = (s.start[i] + s.count[i] - 1) / dims[i] + 1;
  }
  for (Index a = first[0]; a < end[0]; ++a) {
    for (Index b = first[1]; b < end[1]; ++b) {
      for (Index c = first[2]; c < end[2]; ++c) {
        Piece p{&s, {}, {}, {a * dims[0], b * dims[1], c * dims[2]}, dims};
        for (std::size_t i = 0; i < 3; ++i) {
          p.start[i] = std::max(p.corner[i], s.start[i]);
          p.count[i] = std::min(p.corner[i] + dims[i], s.start[i] + s.count[i]) - p.start[i];
        }
        p.chunk = d.chunks[static_cast<std::size_t>((a * grid[1] + b) * grid[2] + c)];
        take(std::move(p));
      }
    }
  }
}

Slab whole(const Dataset& data, const Place& where, Convert convert, void* out,
           std::size_t out_width) {
  return {&data,    &where, {}, boxed(data.sizes, 1), convert, static_cast<std::uint8_t*>(out),
          out_width};
}

}  // namespace

Slab slab(const Tensor& t, const std::vector<Index>& start, const std::vector<Index>& count,
          float* out) {
  Slab s =
      whole(*t.data, t.where,
            t.dtype == DType::bfloat16 ? bfloat16_converter() : real_converter(t.data->element),
            out, sizeof *out);
  std::ranges::copy(start, s.start.end() - static_cast<std::ptrdiff_t>(start.size()));
  std::ranges::copy(count, s.count.end() - static_cast<std::ptrdiff_t>(count.size()));
  return s;
}

Slab whole_reals(const Dataset& data, const Place& where, float* out) {
  return whole(data, where, real_converter(data.element), out, sizeof *out);
}

Slab whole_integers(const Dataset& data, const Place& where, std::int64_t* out) {
  return whole(data, where, integer_converter(data.element), out, sizeof *out);
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
