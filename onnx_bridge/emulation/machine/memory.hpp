// Addresses: what a kernel may touch, and where its code is.
#pragma once
#include "machine.hpp"

constexpr u64 SHARED = 2, PRIVATE = 1; // the upper half of a flat address ×2¹⁶: LDS, scratch
bool inside(Wave& w, u64 address, u64 bytes);
void note(Wave& w, const Instruction* i); // before memory is touched, so that a fault can be named
u64 address_after(Wave& w, const Instruction* i);
const Instruction* go(Wave& w, const Instruction* i, u64 address);
