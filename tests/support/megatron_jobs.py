"""Launch scripts of Megatron-LM as users write them, for tests that convert them."""

#: Llama 3 8B: variables, arrays, a condition, an array that grows.
LLAMA = r"""#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}
CHECKPOINTS=$1
TP=2
NODES=2
PER_NODE=8
LENGTH=8192
KIND="bf16"

LAUNCH=(
    --nproc_per_node $PER_NODE
    --nnodes $NODES    # one for each machine
)
MODEL=(
    --num-layers 32
    --hidden-size 4096 --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --swiglu --normalization RMSNorm
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --position-embedding-type rope
    --attention-dropout 0 --hidden-dropout 0
    --max-position-embeddings $LENGTH --seq-length $LENGTH
    --vocab-size 128256
)
TRAIN=(
    --micro-batch-size 1 --global-batch-size $(($NODES * PER_NODE * 4))
    --train-iters 1000 --lr 3e-4
    --$KIND
)
SPLIT=(
    --tensor-model-parallel-size ${TP}
    --pipeline-model-parallel-size 2
    --sequence-parallel
    # --context-parallel-size 2
)
if [[ "$KIND" == "bf16" ]]; then
    SPLIT+=("--use-distributed-optimizer" "--overlap-grad-reduce")
    SPLIT+=(--overlap-param-gather)
else
    SPLIT+=(--no-such-flag)
fi
torchrun "${LAUNCH[@]}" pretrain_gpt.py \
    ${MODEL[@]} \
    ${TRAIN[@]} "${SPLIT[@]}" --save $CHECKPOINTS --attention-backend fused \
    2>&1 | tee log.txt
"""

#: GPT-3 175B, in one command, with Megatron's defaults for what is not given.
GPT = r"""
MASTER="--master_addr localhost"
torchrun --nproc_per_node=8 --nnodes=64 $MASTER pretrain_gpt.py \
  --num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 --max-position-embeddings 2048 \
  --micro-batch-size 1 --global-batch-size 1536 --fp16 --attention-dropout 0.0 --hidden-dropout 0.0 \
  --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 --num-layers-per-virtual-pipeline-stage 3 \
  --vocab-file gpt2-vocab.json --recompute-activations
"""

#: Mixtral 8x7B.
MIXTRAL = r"""
NNODES=${SLURM_NNODES:-"4"}
ARGS="--disable-bias-linear --seq-length 4096 --max-position-embeddings 32768 --num-layers 32 --hidden-size 4096
  --ffn-hidden-size 14336 --num-attention-heads 32 --normalization RMSNorm --position-embedding-type rope --swiglu
  --untie-embeddings-and-output-weights --group-query-attention --num-query-groups 8 --attention-dropout 0.0
  --hidden-dropout 0.0"
MOE="--num-experts 8 --moe-router-topk 2 --moe-grouped-gemm --moe-permute-fusion --moe-token-dispatcher-type alltoall"
torchrun --nproc_per_node 8 --nnodes $NNODES pretrain_gpt.py $ARGS $MOE --tokenizer-type Llama2Tokenizer \
  --micro-batch-size 1 --global-batch-size 256 --bf16 --pipeline-model-parallel-size 4 \
  --expert-model-parallel-size 8 --use-distributed-optimizer --sequence-parallel
"""

#: DeepSeek-V3 with its latent attention, on the stages of its report.
DEEPSEEK = r"""
options=(
  --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 --kv-channels 128
  --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64
  --v-head-dim 128 --qk-layernorm --num-experts 256 --moe-layer-freq "([0]*3+[1]*58)" --moe-ffn-hidden-size 2048
  --moe-shared-expert-intermediate-size 2048 --moe-router-topk 8 --moe-router-num-groups 8 --moe-router-group-topk 4
  --moe-router-score-function sigmoid --moe-grouped-gemm --moe-permute-fusion --moe-token-dispatcher-type flex
  --moe-router-dtype fp32 --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope
  --untie-embeddings-and-output-weights --vocab-size 129280 --attention-dropout 0 --hidden-dropout 0
)
srun -N 128 --ntasks-per-node=8 python -u pretrain_gpt.py "${options[@]}" --seq-length 4096 --micro-batch-size 1 \
  --max-position-embeddings 4096 --global-batch-size 8192 --bf16 --fp8-format e4m3 --fp8-recipe blockwise \
  --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 16 \
  --decoder-last-pipeline-num-layers 1 --expert-model-parallel-size 64 --expert-tensor-parallel-size 1 \
  --use-distributed-optimizer --use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16 \
  --recompute-granularity selective --recompute-modules mla_up_proj layernorm --moe-router-force-load-balancing
"""

#: Experts in HybridEP's kernels, and Muon with whole matrices shared out over the replicas.
MUON = r"""
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py \
  --num-layers 12 --hidden-size 2048 --ffn-hidden-size 1408 --num-attention-heads 16 --seq-length 4096 \
  --max-position-embeddings 4096 --swiglu --normalization RMSNorm --disable-bias-linear \
  --untie-embeddings-and-output-weights --position-embedding-type rope --vocab-size 151936 --bf16 \
  --attention-dropout 0 --hidden-dropout 0 --num-experts 64 --moe-router-topk 6 --moe-ffn-hidden-size 1408 \
  --moe-grouped-gemm --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep \
  --moe-hybridep-num-sms 32 --moe-router-dtype fp32 --moe-router-fusion --expert-model-parallel-size 8 \
  --expert-tensor-parallel-size 1 --tensor-model-parallel-size 2 --sequence-parallel \
  --micro-batch-size 1 --global-batch-size 128 --train-iters 100 --lr 1e-4 --optimizer dist_muon \
  --muon-momentum 0.95 --muon-num-ns-steps 5 --muon-tp-mode blockwise --muon-use-nesterov --muon-extra-scale-factor 0.2
"""
