// Fibers taking turns, and waiting for each other.
#pragma once
#include <string.h>

#include <algorithm>

#include "machine.h"

namespace metal_cpu {
namespace {

[[noreturn]] void run_next() {
  Machine& m = *machine;
  if (m.ready.empty()) {
    std::string who;
    const Fiber* shown = nullptr;
    for (uint32_t i = 0; i < m.group.members; ++i) {
      const Fiber& f = m.fibers[i];
      if (f.done || (shown && f.waits_at == shown->waits_at && f.waits_line == shown->waits_line))
        continue;
      who += text("; thread %u waits at %s, line %d", i, f.waits_at, f.waits_line);
      shown = &f;
      if (who.size() > 300) break;
    }
    fail(text("divergence: not all threads come to a barrier or simd function: %u of %u have ended",
              m.finished, m.group.members) +
         who);
  }
  if (m.random) std::swap(m.ready.front(), m.ready[drawn(m.ready.size())]);
  m.current = m.ready.front();
  m.ready.pop_front();
  _longjmp(self().at, 1);
}

// Wait for the other members; the last to come orders `memory`, and all go on.
void meet(Meeting& meeting, const char* what, uint32_t memory, int line) {
  Machine& m = *machine;
  if (meeting.arrived == 0) {
    meeting.what = what;
    meeting.line = line;
  } else if (meeting.line != line || (meeting.what != what && strcmp(meeting.what, what) != 0)) {
    fail(text("divergence: %s comes to %s, line %d, while others wait at %s, line %d",
              name_of(self()).c_str(), what, line, meeting.what, meeting.line));
  }
  if (++meeting.arrived < meeting.members) {
    meeting.waiting.push_back(m.current);
    self().waits_at = what;
    self().waits_line = line;
    if (!_setjmp(self().at)) run_next();
    return;
  }
  meeting.arrived = 0;
  for (Memory kind : {DEVICE, THREADGROUP}) meeting.epochs[kind] += (memory & kind) != 0;
  m.ready.insert(m.ready.end(), meeting.waiting.begin(), meeting.waiting.end());
  meeting.waiting.clear();
  if (!m.random) return;
  m.ready.push_back(m.current);
  if (!_setjmp(self().at)) run_next();
}

void fiber_main() {
  for (;;) {
    if (!_setjmp(self().at)) {
      if (machine->threadgroup == 0) setcontext(&machine->main_start);
      if (++machine->finished == machine->group.members) _longjmp(machine->main, 1);
      run_next();
    }
    run_thread(machine->buffers, self().thread);
    self().done = true;
  }
}

void start_fibers(uint32_t count, char* stacks) {
  Machine& m = *machine;
  m.fibers.resize(count);
  m.simdgroups.resize((count + LANES - 1) / LANES);
  for (uint32_t i = 0; i < count; ++i) {
    Fiber& f = m.fibers[i];
    f.stack = stacks + i * STACK;
    getcontext(&f.start);
    f.start.uc_stack.ss_sp = f.stack;
    f.start.uc_stack.ss_size = STACK;
    makecontext(&f.start, fiber_main, 0);
    m.current = i;
    swapcontext(&m.main_start, &f.start);
  }
}

void run_threadgroup(Triple grid, Triple asked, Triple groups, Triple at) {
  Machine& m = *machine;
  Triple origin = {at.x * asked.x, at.y * asked.y, at.z * asked.z};
  Triple size = {std::min(asked.x, grid.x - origin.x), std::min(asked.y, grid.y - origin.y),
                 std::min(asked.z, grid.z - origin.z)};
  uint32_t count = size.x * size.y * size.z;
  ++m.threadgroup;
  m.finished = 0;
  m.group = Meeting{count};
  m.ready.clear();
  for (uint32_t i = 0; i < count; ++i) {
    Triple local = {i % size.x, i / size.x % size.y, i / size.x / size.y};
    Triple position = {origin.x + local.x, origin.y + local.y, origin.z + local.z};
    Fiber& f = m.fibers[i];
    f.thread = Thread{grid, asked, size, groups, position, at, local, i};
    f.done = f.whole_simdgroup = false;
    m.ready.push_back(i);
    if (i % LANES == 0) m.simdgroups[i / LANES].meeting = Meeting{std::min(LANES, count - i)};
  }
  if (!_setjmp(m.main)) run_next();
}

}  // namespace
}  // namespace metal_cpu
