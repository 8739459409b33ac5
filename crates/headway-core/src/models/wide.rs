//! Exact products beyond 128 bits.

/// `a * b` as (high, low) halves of 128 bits; such pairs compare like the products.
pub(crate) const fn multiply(a: u128, b: u128) -> (u128, u128) {
    const LOW: u128 = u64::MAX as u128;
    let (a1, a0, b1, b0) = (a >> 64, a & LOW, b >> 64, b & LOW);
    let low = a0 * b0;
    let middle = a1 * b0 + (low >> 64);
    let other = a0 * b1 + (middle & LOW);
    (a1 * b1 + (middle >> 64) + (other >> 64), (other << 64) | (low & LOW))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_keep_every_bit() {
        assert_eq!(multiply(u128::MAX, u128::MAX), (u128::MAX - 1, 1));
        assert_eq!(multiply(1 << 127, 6), (3, 0));
        assert_eq!(multiply(u128::from(u64::MAX), 1 << 64), (0, u128::MAX - u128::from(u64::MAX)));
        assert_eq!(multiply((7 << 64) + 5, (3 << 64) + 2), (21, (29 << 64) + 10));
    }
}
