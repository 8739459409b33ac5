// The resident copier as clusters of thread blocks, whose blocks share a GPC.

#include "resident.cuh"

// One cluster is a unit. Blocks of it that have gone are not waited for.
struct Cluster {
    __device__ static unsigned index()
    {
        unsigned value;
        asm("mov.u32 %0, %%clusterid.x;" : "=r"(value));
        return value;
    }
    __device__ static unsigned count()
    {
        unsigned value;
        asm("mov.u32 %0, %%nclusterid.x;" : "=r"(value));
        return value;
    }
    __device__ static unsigned rank()
    {
        unsigned value;
        asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(value));
        return value;
    }
    __device__ static void meet()
    {
        asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
    }
    // Each lane writes into the shared memory of one block.
    __device__ static void tell(Command* here, const Command& command, unsigned workers)
    {
        if (threadIdx.x < workers) {
            unsigned there;
            const unsigned own = static_cast<unsigned>(__cvta_generic_to_shared(here));
            asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(threadIdx.x));
            asm volatile("st.shared::cluster.u64 [%0], %1;\n\t"
                         "st.shared::cluster.u64 [%0+8], %2;\n\t"
                         "st.shared::cluster.u64 [%0+16], %3;\n\t"
                         "st.shared::cluster.u64 [%0+24], %4;" ::"r"(there),
                "l"(command.source), "l"(command.destination), "l"(command.bytes), "l"(command.sequence)
                : "memory");
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS) headway_resident_cluster(
    const Mailbox* mailbox, Status* status, u64 generation, u64 lease, unsigned piece, unsigned workers)
{
    reside<Cluster>(mailbox, status, generation, lease, piece, workers);
}
