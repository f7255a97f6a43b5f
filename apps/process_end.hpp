// How the process ends where this program does not end it: an exception that nobody catches (in a
// thread, in a parallel region, for want of memory), or a library that calls exit(), as OpenMP's
// does where it can make no thread.
#pragma once

namespace kvbench {

/// To be called first. From then on such an end has exit code 3 and one line on stderr, and leaves
/// nothing unfinished; rows that are written stay. SIGXFSZ is ignored: a write beyond the limit of
/// a file's size fails as one on a full disk does.
void take_over_ends();

/// The exit code of a program that ends by itself: what follows is no library's exit().
int ends_itself(int code);

}  // namespace kvbench
