# Prints what PyTorch takes for 1 GiB: `.cpu()` into fresh memory and `.to("cuda")` from ordinary memory, medians in seconds.
import time, torch
g = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_(0, 256)
torch.cuda.synchronize()
def med(f, n=5):
    t = []
    for _ in range(n + 1):
        torch.cuda.synchronize(); a = time.perf_counter(); r = f(); torch.cuda.synchronize(); t.append(time.perf_counter() - a); del r
    t = sorted(t[1:]); return t[len(t) // 2]
h = g.cpu()
print("torch", torch.__version__, "1 GiB .cpu() into fresh memory: median s", med(lambda: g.cpu()), ".to('cuda') from ordinary memory", med(lambda: h.to("cuda")))
