// The packed block (headway-core, block.rs) as kernels see it: each lane is padded to a multiple of 16 bytes.
#pragma once

// First word of a block, "HWB1".
#define BLOCK_MAGIC 0x31425748u

// What the header says of one lane.
struct BlockLane {
    uint4 fixed; // magic, lanes, cycle
    uint2 entry; // offset, bytes
};

__device__ __forceinline__ BlockLane block_read_lane(const unsigned char* input, unsigned lane)
{
    BlockLane read;
    read.fixed = *reinterpret_cast<const uint4*>(input);
    read.entry = *reinterpret_cast<const uint2*>(input + 16 + 8 * static_cast<size_t>(lane));
    return read;
}

// Bytes of the lane; none if the block is not one of `lanes` lanes or the lane is not aligned.
__device__ __forceinline__ unsigned block_lane_bytes(const BlockLane& lane, unsigned lanes)
{
    const bool valid = lane.fixed.x == BLOCK_MAGIC && lane.fixed.y == lanes && lane.entry.x % 16 == 0;
    return valid ? lane.entry.y : 0;
}

// Writes the header's part for `lane`; over all lanes that is the whole header.
__device__ __forceinline__ void block_write_lane(
    unsigned char* output, const BlockLane& read, unsigned lanes, unsigned lane)
{
    uint2* entry = reinterpret_cast<uint2*>(output + 16 + 8 * static_cast<size_t>(lane));
    *entry = read.entry;
    if (lane == 0) {
        *reinterpret_cast<uint4*>(output) = read.fixed;
    }
    if (lane == lanes - 1 && lanes % 2 == 1) {
        entry[1] = make_uint2(0, 0); // the padding to 16
    }
}
