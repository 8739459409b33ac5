import ctypes, time, torch, numpy as np, os, sys
cu=ctypes.CDLL('libcuda.so.1'); torch.cuda.init(); torch.zeros(1,device='cuda')
get=cu.cuGetProcAddress_v2
def find(name,version):
    p=ctypes.c_void_p(); f=ctypes.c_int(); assert get(name,ctypes.byref(p),version,ctypes.c_uint64(0),ctypes.byref(f))==0; return p.value
T=ctypes.CFUNCTYPE(ctypes.c_int,ctypes.c_void_p,ctypes.c_void_p,ctypes.c_void_p,ctypes.c_size_t,ctypes.c_void_p,ctypes.c_void_p,ctypes.c_size_t,ctypes.c_void_p)
call=T(find(b'cuMemcpyBatchAsync',13000))
class Attr(ctypes.Structure):
    _fields_=[('order',ctypes.c_uint),('a',ctypes.c_uint),('b',ctypes.c_int),('c',ctypes.c_uint),('d',ctypes.c_int),('flags',ctypes.c_uint)]
def batch(dst,src,n,stream,count=1,order=1,flags=0):
    step=n//count
    D=(ctypes.c_uint64*count)(*[dst+i*step for i in range(count)]); S=(ctypes.c_uint64*count)(*[src+i*step for i in range(count)]); Z=(ctypes.c_size_t*count)(*[step]*count)
    A=(Attr*1)(Attr(order,0,0,0,0,flags)); I=(ctypes.c_size_t*1)(0)
    r=call(D,S,Z,count,A,I,1,stream); assert r==0,r
s=torch.cuda.Stream(); h=s.cuda_stream
who=sys.argv[1]
for n,count in ((1<<30,1),(1<<30,16),(64<<20,1),(8<<20,1),(1<<20,1)):
    host=np.random.default_rng(1).integers(0,256,n,dtype=np.uint8); dev=torch.empty(n,dtype=torch.uint8,device='cuda'); back=np.ones(n,dtype=np.uint8)
    for name,f in (('in',lambda: batch(dev.data_ptr(),host.ctypes.data,n,h,count)),('out',lambda: batch(back.ctypes.data,dev.data_ptr(),n,h,count))):
        times=[]
        for _ in range(12):
            torch.cuda.synchronize(); c=time.process_time(); t=time.perf_counter(); f(); s.synchronize(); times.append((time.perf_counter()-t,time.process_time()-c))
        times=sorted(times[2:]); m=times[5]
        print(f'{who} {name} {n>>20} MiB count {count}: median {n/m[0]/1e9:.1f} best {n/times[0][0]/1e9:.1f} GB/s, CPUs {m[1]/m[0]:.1f}')
    assert (back==host).all(), 'WRONG bytes'
# pinned blocks out in one batch of 4096: the bytes
n=256<<20; dev=torch.randint(0,256,(n,),dtype=torch.uint8,device='cuda'); pin=torch.zeros(n,dtype=torch.uint8).pin_memory()
times=[]
for _ in range(12):
    torch.cuda.synchronize(); t=time.perf_counter(); batch(pin.data_ptr(),dev.data_ptr(),n,h,4096); a=time.perf_counter(); s.synchronize(); times.append((time.perf_counter()-t,a-t))
times.sort(); print(f'{who} pinned out 256 MiB count 4096: median {n/times[6][0]/1e9:.1f} GB/s, call {times[6][1]*1e3:.2f} ms'); assert (pin.cuda()==dev).all()
