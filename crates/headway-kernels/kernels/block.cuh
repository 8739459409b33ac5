// The packed block (headway-core, block.rs) as kernels see it: each portion is padded to a multiple of 16 bytes.
#pragma once

// First word of a block, "HWB1".
#define BLOCK_MAGIC 0x31425748u

// What the header says of one portion.
struct BlockPortion {
    uint4 fixed; // magic, portions, cycle
    uint2 entry; // offset, bytes
};

__device__ __forceinline__ BlockPortion block_read_portion(const unsigned char* input, unsigned portion)
{
    BlockPortion read;
    read.fixed = *reinterpret_cast<const uint4*>(input);
    read.entry = *reinterpret_cast<const uint2*>(input + 16 + 8 * static_cast<size_t>(portion));
    return read;
}

// Bytes of the portion; none if the block is not one of `portions` portions or the portion is not aligned.
__device__ __forceinline__ unsigned block_portion_bytes(const BlockPortion& portion, unsigned portions)
{
    const bool valid = portion.fixed.x == BLOCK_MAGIC && portion.fixed.y == portions && portion.entry.x % 16 == 0;
    return valid ? portion.entry.y : 0;
}

// Writes the header's part for `portion`; over all portions that is the whole header.
__device__ __forceinline__ void block_write_portion(
    unsigned char* output, const BlockPortion& read, unsigned portions, unsigned portion)
{
    uint2* entry = reinterpret_cast<uint2*>(output + 16 + 8 * static_cast<size_t>(portion));
    *entry = read.entry;
    if (portion == 0) {
        *reinterpret_cast<uint4*>(output) = read.fixed;
    }
    if (portion == portions - 1 && portions % 2 == 1) {
        entry[1] = make_uint2(0, 0); // the padding to 16
    }
}
