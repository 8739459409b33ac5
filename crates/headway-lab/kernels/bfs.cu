// Breadth-first search, level by level, in two kernels (the copies and launches that cho-2018 measures): `bfs_expand` marks
// what the frontier reaches, `bfs_advance` makes it the next frontier. One thread a node.

struct Node {
    int first;
    int degree;
};

extern "C" __global__ void __launch_bounds__(512) bfs_expand(const Node* __restrict__ nodes,
    const int* __restrict__ edges, unsigned char* __restrict__ frontier, unsigned char* __restrict__ reached,
    const unsigned char* __restrict__ visited, int* __restrict__ cost, int count)
{
    const int node = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (node >= count || !frontier[node]) {
        return;
    }
    frontier[node] = 0;
    const int next = cost[node] + 1;
    const Node own = nodes[node];
    for (int at = own.first; at < own.first + own.degree; at++) {
        const int target = edges[at];
        if (!visited[target]) {
            // Every thread that comes here writes the same: all of a frontier are equally far.
            cost[target] = next;
            reached[target] = 1;
        }
    }
}

extern "C" __global__ void __launch_bounds__(512) bfs_advance(unsigned char* __restrict__ frontier,
    unsigned char* __restrict__ reached, unsigned char* __restrict__ visited, unsigned char* __restrict__ more, int count)
{
    const int node = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (node >= count || !reached[node]) {
        return;
    }
    reached[node] = 0;
    frontier[node] = 1;
    visited[node] = 1;
    *more = 1;
}
